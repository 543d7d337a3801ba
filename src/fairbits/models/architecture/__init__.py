"""The architecture map: the role of each tensor, traced on the meta device. To add names: `architecture.py`."""
