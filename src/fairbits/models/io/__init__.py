"""Files of a model, read and written."""
