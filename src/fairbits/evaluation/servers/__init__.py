"""Running servers: how they are asked for the log-probabilities of a text, and what follows from their answers."""
