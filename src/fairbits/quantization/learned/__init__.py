"""Learned rounding: codes and scales that were rounded layer by layer are improved by gradient descent.

Start with `learn`: it has the training loop and says what is learned, against what, and how the best codes are chosen.
`fairbits.quantization.execute` decides which of it a plan needs.
"""
