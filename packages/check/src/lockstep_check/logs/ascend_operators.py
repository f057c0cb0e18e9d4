"""Operators that an Ascend host log says were compiled: with which inputs, how often, in how many forms.

With INFO logging, CANN's `aclopCompile` logs every operator that it is asked to compile: its type and the description
of its inputs, outputs and attributes. Many forms of one type are shapes that change, each compiled anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import xxhash

MARK = "aclopCompile::aclOp"
"""Stands in every line that describes one."""

_OPERATOR = re.compile(r"OpType: ?(?P<type>[\w:.]+),? ?(?P<rest>.*)")
_CASTS = frozenset({"TransData", "TransDataRNN"})
_MOST_FORMS = 100_000
_MOST_SHOWN = 3
_FORM_CHARACTERS = 300


@dataclass(slots=True)
class AscendOperator:
    """One type of operator.

    lines: How often it was logged.
    forms: Digests of what was described, without repeats.
    examples: The first descriptions, shortened.
    """

    lines: int = 0
    forms: set[int] = field(default_factory=set)
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class AscendOperators:
    """All operators of the logs, by type."""

    by_type: dict[str, AscendOperator] = field(default_factory=dict)
    not_counted: int = 0
    """Lines whose form was not looked at, since there were too many."""

    def add(self, line: str) -> None:
        """Count the operator that a line describes; lines that describe none are left out."""
        found = _OPERATOR.search(line)
        if found is None:
            return
        operator = self.by_type.setdefault(found["type"], AscendOperator())
        operator.lines += 1
        form = str(found["rest"]).strip()
        digest = xxhash.xxh64_intdigest(form.encode())
        if digest in operator.forms:
            return
        if sum(len(one.forms) for one in self.by_type.values()) >= _MOST_FORMS:
            self.not_counted += 1
            return
        operator.forms.add(digest)
        if len(operator.examples) < _MOST_SHOWN:
            operator.examples.append(form[:_FORM_CHARACTERS])

    def most_logged(self) -> list[tuple[str, AscendOperator]]:
        """By number of forms, then by how often they were logged."""
        order = sorted(self.by_type.items(), key=lambda item: item[0])
        return sorted(order, key=lambda item: (-len(item[1].forms), -item[1].lines))

    @property
    def format_casts(self) -> int:
        """How often an operator that only changes a tensor's format was logged."""
        return sum(one.lines for name, one in self.by_type.items() if name in _CASTS)
