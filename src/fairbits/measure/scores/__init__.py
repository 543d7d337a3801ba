"""What quantization cost each language: losses, divergence and flips on the same text."""
