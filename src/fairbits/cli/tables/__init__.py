"""Tables of the terminal, one module per verb."""
