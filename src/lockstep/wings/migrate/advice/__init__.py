"""Affinity advice: places where an equal but faster form exists on the target.

Each piece says why its form is faster, by which source, and what stays equal. It is listed; `--advice-apply` writes
what is provably equal, and what the vendor's own guide asks for although it changes a shape or a dtype: that is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lockstep.wings.migrate.advice.advisor import Advisor
from lockstep.wings.migrate.advice.class_targets import find_class_targets
from lockstep.wings.migrate.advice.loading import find_loading
from lockstep.wings.migrate.advice.optimizers import find_optimizers
from lockstep.wings.migrate.advice.shapes import find_shapes
from lockstep.wings.migrate.advice.views import find_views
from lockstep.wings.migrate.advice.waits import find_waits
from lockstep.wings.migrate.advice.words import all_words
from lockstep.wings.migrate.engine.unit import Unit

__all__ = ["PREFIX", "RULES", "find_advice", "may_need_advice"]

PREFIX = "advice/"
"""What the identifiers of all advice begin with."""

RULES: Mapping[str, str] = {rule: words.summary for rule, words in all_words().items()}

# Class numbers before copies: `.to(torch.int32)` stands before what is appended to the same call.
_FINDERS = (
    find_class_targets,
    find_loading,
    find_optimizers,
    find_views,
    find_shapes,
    find_waits,
)
# Each line: what a module must hold, all of it, for one piece of advice.
_SIGNS = tuple(
    tuple(re.compile(sign) for sign in signs)
    for signs in (
        (r"\.backward\(",),
        (r"\bDataLoader\b",),
        (r"\b(?:SGD|Adam|AdamW|RMSprop|Adadelta)\(",),
        (r"\bamp\.initialize\b",),
        (r"hannel_?[sS]huffle",),
        (r"\b(?:permute|transpose|swapaxes|swapdims)\(", r"\.(?:contiguous|reshape)\("),
        (r"\.(?:t\(\)|T|mT)\.contiguous\(",),
        (r"\bdef forward\b", r"\b(?:nonzero|argwhere|masked_select|unique)\(|torch\.where\("),
        (r"\[[^\]\n]*(?:[<>]|[=!]=)[^\n]*\]\s*=[^=]",),
        (r"\bdef forward\b", r"\[[^\]\n]*(?:[<>]|[=!]=)|::\s*\d"),
    )
)


def may_need_advice(text: str) -> bool:
    """Whether a module may hold anything that advice is given on; a quick look at its text."""
    return "torch" in text and any(all(sign.search(text) for sign in signs) for signs in _SIGNS)


def find_advice(unit: Unit) -> None:
    """Give all advice on a module, once every other rule is done."""
    advisor = Advisor(unit)
    for find in _FINDERS:
        find(advisor)
