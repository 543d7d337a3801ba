"""The verbs of fairbits, one module each."""
