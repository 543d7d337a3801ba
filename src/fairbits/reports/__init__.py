"""Reports for readers: an HTML page, a section of a model card, or JSON."""
