"""The version of fairbits."""

__version__ = "0.1.0"
