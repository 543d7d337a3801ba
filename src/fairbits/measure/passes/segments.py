"""Which hidden states of a pass in blocks are kept, and which are computed again for the backward pass.

The backward pass of a block needs the states at its input. Those of all blocks may be more than fits. So the blocks are
divided into segments. Forward, the states at the input of every segment are kept and, in the last segment, those of
every block. Backward, a segment whose turn has come is first computed again from its input, and the states that are
kept meanwhile take the places of those that have been used. With n places, n + (n − 1) + … + 1 blocks can be passed.
"""

from fairbits.errors import InputError


def least_places(blocks: int) -> int:
    """Returns the least number of blocks whose inputs must fit in memory, for all blocks to be passed backward.

    >>> least_places(32), least_places(80)
    (8, 13)
    """
    places = 1
    while places * (places + 1) // 2 < blocks:
        places += 1
    return places


def segments(blocks: int, places: int) -> tuple[range, ...]:
    """Returns the segments of a number of blocks, with as few blocks computed again as places for their inputs allow.

    >>> segments(32, 40), segments(32, 24), segments(10, 4)
    ((range(0, 32),), (range(0, 9), range(9, 32)), (range(0, 4), range(4, 7), range(7, 9), range(9, 10)))
    """
    if places < least_places(blocks):
        raise InputError(f"{places} places are too few for {blocks} blocks; at least {least_places(blocks)} are needed")
    lengths: list[int] = []
    before = 0  # segments before the last
    while sum(places - i for i in range(before + 1)) < blocks:
        before += 1
    end = blocks
    for index in range(before, -1, -1):
        length = end if index == 0 else min(places - index, end - index)
        lengths.append(length)
        end -= length
    found, start = [], 0
    for length in reversed(lengths):
        found.append(range(start, start + length))
        start += length
    return tuple(found)
