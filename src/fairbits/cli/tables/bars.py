"""Bars of block characters, an eighth of a character fine."""

EIGHTHS = " ▏▎▍▌▋▊▉█"
LENGTH = 8  # characters


def filled(share: float) -> str:
    """Returns a bar that fills this share of LENGTH characters; empty for nothing.

    >>> filled(0.5), filled(-1.0)
    ('████', '')
    """
    eighths = round(8 * LENGTH * max(share, 0.0))
    return (EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()
