"""The verbs of fairbits, one file each; they speak to each other through what they return."""
