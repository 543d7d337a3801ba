"""The server: completions over HTTP, each by the weights of its language."""
