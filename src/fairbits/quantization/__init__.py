"""From what is known of a model to a plan, and from a plan to codes."""
