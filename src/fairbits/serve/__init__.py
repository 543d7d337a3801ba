"""Overlays for languages, and the server that applies them."""
