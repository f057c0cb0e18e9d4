"""Check a width before anything is measured."""

from __future__ import annotations

from lockstep.errors import UsageError
from lockstep_deploy.quantize.uniform import MOST_BITS

_COSTS = {
    1: (
        "1 bit keeps the sign of a weight: weights of a bell-shaped spread come back at 4.4 dB, a third of their energy"
        " wrong, which few networks stand that were not trained for it"
    ),
    2: (
        "2 bits are four levels: weights of a bell-shaped spread come back at 9.3 dB, which costs most networks"
        " accuracy that were not trained for it"
    ),
}


def check_bits(bits: int) -> None:
    """Refuse a width that no engine has. Raises UsageError if it is not from 1 to 16."""
    if not 1 <= bits <= MOST_BITS:
        raise UsageError(f"--bits {bits}: weights are quantised to 1 to {MOST_BITS} bits")


def cost_of(bits: int) -> str:
    """Return the cost of a very small width, in a sentence; "" for others.

    The figures are the least squared errors of a normal density: one bit leaves `1 - 2 / pi` of its energy, four even
    levels 11.9 % (Max, Quantizing for minimum distortion, 1960, table II).
    """
    return _COSTS.get(bits, "")
