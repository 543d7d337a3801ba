"""The lock around parallel numba kernels."""

from threading import RLock

LAUNCH = RLock()
"""Held while parallel kernels run: one call uses all cores, and numba's fallback threads allow only one caller."""
