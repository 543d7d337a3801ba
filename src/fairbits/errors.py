"""The one family of errors that fairbits raises on purpose."""


class FairbitsError(Exception):
    """A problem the user can act on: what arrived, what must hold, what to do."""


class InputError(FairbitsError, ValueError):
    """An argument or a file that cannot be used as it is."""
