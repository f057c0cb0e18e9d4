"""Affinity advice: places where an equal but faster form exists on the target.

Each piece says why its form is faster, by which source, and what stays equal. It is told by the place alone: what
would need to know where a tensor comes from or goes to is not said. All is listed; `--advice-apply` writes what the
vendor's own guide asks for and is one keyword.
"""

from __future__ import annotations

import re

from lockstep_migrate.advice.advisor import Advisor
from lockstep_migrate.advice.expressions import find_expressions
from lockstep_migrate.advice.optimizers import find_optimizers
from lockstep_migrate.advice.training import find_loaders, find_losses, find_waits
from lockstep_migrate.torch.unit import Unit

__all__ = ["PREFIX", "find_advice", "may_need_advice"]

PREFIX = "advice/"
"""What the identifiers of all advice begin with."""

_FINDERS = (find_loaders, find_losses, find_optimizers, find_expressions, find_waits)
_SIGNS = re.compile(
    r"\.backward\(|\bDataLoader\b|\b(?:SGD|Adam|AdamW|RMSprop|Adadelta)\(|\bamp\.initialize\b|hannel_?[sS]huffle"
    r"|\.(?:t\(\)|T|mT|transpose\([^)\n]*\)|permute\([^)\n]*\))\.contiguous\(|cross_entropy\(|nll_loss\("
    r"|CrossEntropyLoss|NLLLoss|\[[^\]\n]*(?:[<>]|[=!]=)|::\s*\d|\bdef forward\b"
)


def may_need_advice(text: str) -> bool:
    """Whether a module may hold anything that advice is given on; a quick look at its text."""
    return "torch" in text and _SIGNS.search(text) is not None


def find_advice(unit: Unit) -> None:
    """Give all advice on a module, once every other rule is done."""
    advisor = Advisor(unit)
    for find in _FINDERS:
        find(advisor)
