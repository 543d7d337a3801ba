"""How results look in a terminal and in a notebook: short tables, figures, and pandas on request."""
