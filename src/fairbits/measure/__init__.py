"""What one pass over text shows: audit and scores."""
