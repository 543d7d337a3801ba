"""The lock around parallel numba kernels."""

from threading import RLock

LAUNCH = RLock()  # held while parallel kernels run: numba's fallback threads allow only one caller
