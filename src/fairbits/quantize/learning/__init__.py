"""Learning: codes that were rounded layer by layer are changed until the answers of the model are nearest to its own.

`carry_out` carries out any plan; one that says nothing of learning is only rounded.
"""

from fairbits.quantize.learning.engine import carry_out

__all__ = ["carry_out"]
