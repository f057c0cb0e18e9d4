"""The candidate's names of modules, parameters and operators in the reference's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lockstep.core.finding import Axes
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind

if TYPE_CHECKING:
    from lockstep.core.tensor_layouts import Layout

SUM = " + "
"""Between the names of parameters that are one in the other run: their sum has a name that no tensor has."""

BY_FILE = "mapping file"
"""How a name was found that the user gave."""


@dataclass(frozen=True)
class NameMap:
    """The candidate's names in the reference's words; a name that is not in it is the same in both.

    Parameters
    ----------
    modules, tensors, operators
        Reference name by candidate name: module paths, full names of parameters and buffers,
        operator names.
    layouts
        Order of axes of parameters that the candidate keeps transposed, by the reference's name.
    found_by
        How the partner of a module path or tensor name of the candidate was found, in words.
    states
        Reference name by candidate name of what optimizers keep for a parameter.
    declared
        Layouts that a mapping file gives to parameters, by the reference's name.
    activations
        Layouts that it gives to everything else.
    """

    modules: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    operators: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, Axes] = field(default_factory=dict)
    found_by: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, Layout] = field(default_factory=dict)
    activations: tuple[Layout, ...] = ()

    def __bool__(self) -> bool:
        return any(
            (
                self.modules,
                self.tensors,
                self.operators,
                self.layouts,
                self.states,
                self.activations,
            )
        )

    def module(self, path: str) -> str:
        """The reference's path of a candidate's module; below a renamed one, the same remainder.

        >>> NameMap(modules={"layers": "blocks"}).module("layers.0.act")
        'blocks.0.act'
        """
        above, below = path, ""
        while above:
            if above in self.modules:
                return (self.modules[above] + below).lstrip(".")
            above, _, last = above.rpartition(".")
            below = f".{last}{below}"
        return path

    def tensor(self, name: str) -> str:
        """The reference's name of a candidate's parameter, buffer or optimizer state."""
        owner, mark, state = name.partition("|")
        return self.tensors.get(owner, owner) + mark + self.states.get(state, state)

    def layout(self, name: str) -> Axes | None:
        """Order of axes of the reference's parameter, its gradient or state in the candidate."""
        return self.layouts.get(name.partition("|")[0])

    def operator(self, op: str) -> str:
        """The reference's name of a candidate's operator."""
        return self.operators.get(op, op)

    def call(self, call: Call) -> Call:
        """A candidate's call as the reference would name it."""
        module, op = self.module(call.site.module), self.operator(call.site.op)
        records = tuple(self._record(record) for record in call.records)
        if call.kind in _OF_PARAMETERS and self._is_given(call):
            name = records[0].name.split(SUM)[0]
            module = name.rpartition(".")[0]  # one run may keep it in a module deeper
        return replace(call, site=replace(call.site, module=module, op=op), records=records)

    def _is_given(self, call: Call) -> bool:
        """Whether the user gave the name of the first parameter of a call."""
        name = call.records[0].name.partition("|")[0] if call.records else ""
        return name in self.tensors and self.found_by.get(name) == BY_FILE

    def _record(self, record: TensorRecord) -> TensorRecord:
        name = self.tensor(record.name)
        return record if name == record.name else replace(record, name=name)

    def how(self, call: Call) -> str:
        """How the partner of a candidate's call was found, "" where both call it alike."""
        if call.kind is CallKind.OPERATOR:
            return self.found_by.get(call.site.op, "")
        if call.kind in _NAMED_BY_TENSOR:
            names = (record.name.partition("|")[0] for record in call.records)
            return next((self.found_by[name] for name in names if name in self.found_by), "")
        path = call.site.module
        while path and path not in self.found_by:
            path = path.rpartition(".")[0]
        return self.found_by.get(path, "")

    def notes(self) -> list[str]:
        """Return notes about renamed things, without those that follow from a name above."""
        names = [
            *(new for new, old in self.modules.items() if not self._follows(new, old)),
            *(new for new, old in self.tensors.items() if not self._follows(new, old)),
        ]
        return [
            self.found_by[name] for name in names if self.found_by.get(name, BY_FILE) != BY_FILE
        ]

    def _follows(self, new: str, old: str) -> bool:
        above, _, last = new.rpartition(".")
        return f"{self.module(above)}.{last}".lstrip(".") == old


_OF_PARAMETERS = frozenset({CallKind.INIT, CallKind.GRADIENT, CallKind.OPTIMIZER})
_NAMED_BY_TENSOR = _OF_PARAMETERS | {CallKind.DATA}

SAME_NAMES = NameMap()
"""Both runs name everything alike."""
