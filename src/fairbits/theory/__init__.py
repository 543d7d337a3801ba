"""The mathematics of language-aware clipping."""
