"""The architecture map: the role of each tensor of a checkpoint, from the transformers class on the meta device."""
