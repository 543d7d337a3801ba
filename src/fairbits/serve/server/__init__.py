"""The HTTP server: completions over an OpenAI-compatible API, each with the overlay of its language."""
