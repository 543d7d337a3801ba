"""The cost of quantization for each language: loss, divergence and flips on the same text."""
