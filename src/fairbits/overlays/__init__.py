"""Adaptive models: one quantized base, and what is switched in it for the language that arrives."""
