"""Imports the packages first, so that doctests of a single file meet the same classes as the package does."""

import fairbits.science.claims
import fairbits.stats
import fairbits.theory  # noqa: F401
