"""Adaptive models: one quantized base, and the rows that are switched in it for the language of a request."""
