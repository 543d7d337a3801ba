"""fairbits: quantize multilingual language models so that no language is left behind."""

__version__ = "0.1.0"
