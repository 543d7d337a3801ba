"""The verbs of the command line, one module each: their options, and what they print."""
