"""A recorded step as the records of mindstudio-probe: `Functional.linear.0.forward`, `Module.fc.Linear.backward.0`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.recordings import Call, CallKind, Phase, Role, TensorRecord
from lockstep_interop_names.faces.api_calls import PASSES, ApiNumbers, place_of

Leaf = Callable[[str, TensorRecord], dict[str, Any] | None]
"""Writes of a tensor what the dump tells of it, given the name of its file without the suffix; None for nothing."""


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """One record of a dump.

    name: `Functional.linear.0.forward`.
    body: As JSON has it.
    call: What it is of.
    """

    name: str
    body: dict[str, Any]
    call: Call


_GRADIENTS = {
    Role.INPUT: (Role.GRAD_INPUT, Role.PARAM_GRAD),
    Role.OUTPUT: (Role.GRAD_OUTPUT,),
}
"""Which gradients tell that a tensor requires one."""


class ProbeRecords:
    """Makes the records of one step after the other.

    level: "L0" for modules, "L1" for operators, "mix" for both.
    leaf: Writes of a tensor what is told of it.
    """

    def __init__(self, level: str, leaf: Leaf) -> None:
        self._level, self._leaf = level, leaf
        self._numbers = ApiNumbers()
        self._modules: Counter[str] = Counter()
        self._names: dict[int, tuple[str, str]] = {}

    def of(self, calls: list[Call]) -> Iterator[ProbeRecord]:
        """The records of a step, in the order in which they were complete."""
        self._names = {call.id: named for call in calls if (named := self._named(call))}
        parameters = _parameters_of(calls)
        found: list[tuple[int, ProbeRecord]] = []
        for call in calls:
            if call.id in self._names:
                found += self._passes(call, parameters)
        found += self._gradients(calls)
        for _, one in sorted(found, key=lambda item: item[0]):
            yield one

    def names(self, calls: list[Call]) -> dict[int, str]:
        """Return the name of each dumped call, by its number; `{}` stands for the phase."""
        named = ((call.id, self._named(call)) for call in calls)
        return {number: "{}".join(name) for number, name in named if name is not None}

    def parents(self, calls: list[Call]) -> dict[str, str | None]:
        """The module around each call, by names."""
        if self._level == "L1":
            return {}
        by_id = {call.id: call for call in calls}
        parents: dict[str, str | None] = {}
        for number in self._names:
            around = by_id[number].parent
            while around in by_id and not self._is_module(around, by_id):
                around = by_id[around].parent
            parents[self._name(number, Phase.FORWARD)] = (
                self._name(around, Phase.FORWARD) if around in by_id else None
            )
        return parents

    def _is_module(self, number: int, by_id: dict[int, Call]) -> bool:
        return number in self._names and by_id[number].kind is CallKind.MODULE

    def _named(self, call: Call) -> tuple[str, str] | None:
        """What stands before the phase in a name, and behind; None for a call that is not dumped."""
        if call.kind is CallKind.OPERATOR and self._level != "L0":
            kind, api, number = self._numbers.of(call)
            return f"{kind}.{api}.{number}.", ""
        if call.kind is CallKind.MODULE and self._level != "L1" and call.site.module:
            start = _module_name(call.site.module, call.site.op)
            self._modules[start] += 1
            return f"{start}.", f".{self._modules[start] - 1}"
        return None

    def _name(self, number: int, phase: Phase) -> str:
        return phase.value.join(self._names[number])

    def _passes(
        self, call: Call, parameters: dict[str, dict[str, TensorRecord]]
    ) -> Iterator[tuple[int, ProbeRecord]]:
        for phase, (entering, leaving) in PASSES.items():
            given, made = call.with_role(*entering), call.with_role(*leaving)
            if not given and not made:
                continue
            name = self._name(call.id, phase)
            if phase is Phase.FORWARD:
                body = self._forward(name, call, parameters)
            else:
                body = {
                    "input": self._list(name, "input", call, given),
                    "output": self._list(name, "output", call, made),
                }
            yield max(one.sequence for one in (*given, *made)), ProbeRecord(name, body, call)

    def _forward(
        self, name: str, call: Call, parameters: dict[str, dict[str, TensorRecord]]
    ) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for record in call.with_role(Role.INPUT):
            key = record.argument or record.name
            start, _, place = key.partition(".")
            what = "kwargs" if start == "kwargs" else "input"
            given[key] = self._told(f"{name}.{what}.{place or record.index}", record, call)
        if call.kind is CallKind.OPERATOR:
            given |= {key: _plain(value) for key, value in call.arguments.items()}
        tree = _grown(given)
        body = {
            "input_args": _as_list(tree.get("args", {})), "input_kwargs": _as_dict(tree.get("kwargs", {})),
            "output": self._list(name, "output", call, call.with_role(Role.OUTPUT)),
        }  # fmt: skip
        own = parameters.get(call.site.module, {}) if call.kind is CallKind.MODULE else {}
        if own:
            body["parameters"] = {
                key: self._told(f"{name}.parameters.{key}", record, call)
                for key, record in own.items()
            }
        return body

    def _list(
        self, name: str, what: str, call: Call, records: tuple[TensorRecord, ...]
    ) -> list[Any]:
        leaves = {}
        for record in records:
            place = place_of(record, call)
            leaves[place] = self._told(f"{name}.{what}.{place}", record, call)
        return _as_list(_grown(leaves))

    def _told(self, name: str, record: TensorRecord, call: Call) -> dict[str, Any] | None:
        leaf = self._leaf(name, record)
        if leaf is None:
            return None
        gradients = call.with_role(*_GRADIENTS.get(record.role, ()))
        return {
            **leaf,
            "requires_grad": record.role is Role.PARAM
            or any(one.name == record.name for one in gradients),
        }

    def _gradients(self, calls: list[Call]) -> Iterator[tuple[int, ProbeRecord]]:
        """What a step adds to the gradients of each module's parameters; where modules are dumped."""
        owners = {call.site.module: call for call in calls if call.kind is CallKind.INIT}
        bodies: dict[str, tuple[int, ProbeRecord]] = {}
        for call in calls if self._level != "L1" else ():
            for record in call.with_role(Role.PARAM_GRAD) if call.kind is CallKind.GRADIENT else ():
                module, _, parameter = record.name.rpartition(".")
                if not module or module not in owners:
                    continue
                name = f"{_module_name(module, owners[module].site.op)}.parameters_grad.0"
                _, one = bodies.get(name, (0, ProbeRecord(name, {}, call)))
                one.body[parameter] = [self._told(f"{name}.{parameter}", record, call)]
                bodies[name] = record.sequence, one
        yield from bodies.values()


def _module_name(path: str, op: str) -> str:
    return f"Module.{path}.{op.rpartition('.')[2]}"


def _parameters_of(calls: list[Call]) -> dict[str, dict[str, TensorRecord]]:
    """Parameters by module and their own name."""
    found: dict[str, dict[str, TensorRecord]] = {}
    for call in calls:
        for record in call.with_role(Role.PARAM) if call.kind is CallKind.INIT else ():
            module, _, name = record.name.rpartition(".")
            found.setdefault(module, {})[name] = record
    return found


def _plain(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {"type": type(value).__name__, "value": value}


def _grown(leaves: dict[str, Any]) -> dict[str, Any]:
    """Nested containers of what is known by its place: `1.0` stands in `1`."""
    tree: dict[str, Any] = {}
    for place, leaf in leaves.items():
        node = tree
        *above, last = place.split(".")
        for part in above:
            node = node.setdefault(part, {})
            if isinstance(node, _Leaf):  # what is told of the container has no tensors
                break
        else:
            node[last] = _Leaf(leaf)
    return tree


@dataclass(frozen=True, slots=True)
class _Leaf:
    value: Any


def _as_list(tree: dict[str, Any]) -> list[Any]:
    """Positions as a list, None where nothing stands; names behind them."""
    numbers = [int(key) for key in tree if key.isdigit()]
    placed = [_out(tree.get(str(number))) for number in range(max(numbers, default=-1) + 1)]
    return placed + [_out(node) for key, node in tree.items() if not key.isdigit()]


def _as_dict(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: _out(node) for key, node in tree.items()}


def _out(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    if node is None:
        return None
    return _as_list(node) if all(key.isdigit() for key in node) else _as_dict(node)


def stack_lines(call: Call, sources: Mapping[str, Mapping[int, str]]) -> Iterator[str]:
    """The lines of stack.json on where a call was made, innermost first."""
    for frame in call.stack:
        text = sources.get(frame.file, {}).get(frame.line, "").strip()
        yield f"File {frame.file}, line {frame.line}, in {frame.function}, \n {text}"
