"""One pass over text: what every language does inside a model, and how much each linear layer matters to its loss."""
