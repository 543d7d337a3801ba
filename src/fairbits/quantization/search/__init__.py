"""Searches that try plans: the sensitivity of blocks, and the weights of languages."""
