"""A model whose weights are swapped for those of a plan, and what it then answers."""
