"""The architecture map: the role of each tensor of a checkpoint, from the transformers class on the meta device."""

from fairbits.model.architecture.assemble import architecture
from fairbits.model.architecture.records import Architecture, Block, Part, Role, Weight
from fairbits.model.architecture.skeleton import model_class

__all__ = ["Architecture", "Block", "Part", "Role", "Weight", "architecture", "model_class"]
