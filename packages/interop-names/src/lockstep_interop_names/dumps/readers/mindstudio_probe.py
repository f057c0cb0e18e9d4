"""Dumps of mindstudio-probe: `step0/rank0/dump.json` with its stacks, its tree of modules and its tensors.

Records stand in the order in which calls ended, so a module stands behind what it called; here it begins right before
the first of it. What it calls the gradients that an operator sends back are those of the last function in its graph
(a view of the output's gradient for `linear`, the gradient of the log-softmax for `cross_entropy`), and not always
those of its arguments: they are kept under that name, `grad_fn.0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError
from lockstep.recordings import OF_LAST_FUNCTION, CallKind, NotSeen, Phase, ReadCall, Role
from lockstep_interop_names.dumps.api_names import class_name, operator_name
from lockstep_interop_names.dumps.places import Place, json_in, places_in
from lockstep_interop_names.dumps.probe_context import GRADIENTS, missing_in, parents_in, stacks_in
from lockstep_interop_names.dumps.probe_leaves import arguments_in, tensors_of
from lockstep_interop_names.dumps.timeline import Clock, Draft

DUMP, DEBUG = "dump.json", "debug.json"
_API = re.compile(r"(?!Module\.|Cell\.)(\w+)\.(.+)\.(\d+)\.(forward|backward)")
_MODULE = re.compile(r"(?:Module|Cell)\.(?:(.+)\.)?([^.]+)\.(forward|backward)\.(\d+)")
_DEBUG = re.compile(r"(.+?)(_grad)?\.(\d+)\.debug")
_MODULE_DEPTH = 1000
"""Modules that one module may lie within: as many as Python lets functions lie within each other."""


def recognises(path: Path) -> bool:
    """Whether a path is such a dump, or holds its steps or ranks."""
    return bool(places_in(path, _is_rank))


def _is_rank(folder: Path) -> bool:
    for name in (DUMP, DEBUG):
        file = folder / name
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                start = opened.read(4096)
            return b'"task"' in start and (b'"data' in start or len(start) < 4096)
    return False


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, rank by rank and step by step, and what such a dump lacks."""
    told: set[tuple[str, str]] = set()
    rank, clock = -1, Clock()
    for place in places_in(path, _is_rank):
        if place.rank != rank:
            rank, clock = place.rank, Clock()
        one = _Step(place, is_first=clock.now == 0)
        for missing in one.missing():
            if (missing.what, missing.reason) not in told:
                told.add((missing.what, missing.reason))
                yield missing
        yield from clock.in_order(one.drafts)


class _Step:
    """What one rank left of one step."""

    def __init__(self, place: Place, *, is_first: bool) -> None:
        self._place, self._is_first = place, is_first
        folder = place.folder
        self._file = folder / (DUMP if (folder / DUMP).is_file() else DEBUG)
        dump = json_in(self._file)
        if not isinstance(dump, dict) or not isinstance(dump.get("data"), dict):
            raise CorruptError(
                self._file, "holds no data, as such a dump does", advice="dump again"
            )
        self._task, self._level = str(dump.get("task")), str(dump.get("level"))
        self._data: dict[str, Any] = dump["data"]
        self._unread: list[str] = []
        self._leaves = partial(tensors_of, self._file, folder / "dump_tensor_data")
        self._parents = parents_in(folder / "construct.json")
        self._stacks = stacks_in(folder / "stack.json")
        self._forward: dict[str, Draft] = {}
        self.drafts: list[Draft] = []
        self._collect()

    def missing(self) -> Iterator[NotSeen]:
        """The parts of a recording that this dump lacks."""
        yield from missing_in(self._task, self._level, self._data)
        if self._unread:
            some, what = (
                ", ".join(self._unread[:3]),
                f"{len(self._unread)} records of {self._file.name}",
            )
            yield NotSeen(what, f"their names are not known: {some}")

    def _collect(self) -> None:
        for number, (name, body) in enumerate(self._data.items()):
            if not isinstance(body, (dict, list)):
                raise CorruptError(self._file, f"{name} is not a record", advice="dump again")
            if found := GRADIENTS.fullmatch(name):
                self._gradients(number, found[1] or "", body)
            elif found := _MODULE.fullmatch(name):
                self._call(
                    number,
                    name,
                    body,
                    found[3],
                    found[1] or "",
                    class_name(found[2]),
                    CallKind.MODULE,
                )
            elif found := _API.fullmatch(name):
                op = operator_name(found[1], found[2])
                self._call(number, name, body, found[4], None, op, CallKind.OPERATOR)
            elif found := _DEBUG.fullmatch(name):
                self._saved(number, found[1], bool(found[2]), found[3], body)
            else:
                self._unread.append(name)
        self._nest()

    def _call(
        self,
        number: int,
        name: str,
        body: Any,
        phase: str,
        module: str | None,
        op: str,
        kind: CallKind,
    ) -> None:
        body = body if isinstance(body, dict) else {}
        if phase == "backward":
            self._backward(number, name, body, module or "", op, kind)
            return
        call = ReadCall(
            self._place.step, module or "", op, (), self._place.rank, kind,
            arguments=arguments_in(body), module_class=op if kind is CallKind.MODULE else "",
            stack=self._stacks.get(name, ()),
        )  # fmt: skip
        draft = Draft((number, 1, 0, 0), call)
        entering = [
            *self._leaves(body.get("input_args", body.get("input")), "args", Role.INPUT),
            *self._leaves(body.get("input_kwargs"), "kwargs", Role.INPUT),
        ]
        leaving = list(self._leaves(body.get("output"), "result", Role.OUTPUT))
        for place, one in enumerate([*entering, *leaving], 1):
            draft.tensors.append(((number, 1, 0, place), one))
        self._forward[name] = draft
        self.drafts.append(draft)
        if kind is CallKind.MODULE and self._is_first:
            self._parameters(number, module or "", op, body.get("parameters"))

    def _parameters(self, number: int, module: str, op: str, given: Any) -> None:
        """Parameters as they were when the first step began."""
        found = list(self._leaves(given, module, Role.PARAM))
        if not found or any(
            one.call.kind is CallKind.INIT and one.call.module == module for one in self.drafts
        ):
            return
        call = ReadCall(
            self._place.step, module, op, (), self._place.rank, CallKind.INIT, Phase.INIT, module_class=op
        )  # fmt: skip
        keyed = [((-1, number, place), one) for place, one in enumerate(found, 1)]
        self.drafts.append(Draft((-1, number, 0), call, tensors=list(keyed)))

    def _backward(
        self, number: int, name: str, body: Any, module: str, op: str, kind: CallKind
    ) -> None:
        forward = re.sub(r"\.backward(?=\.\d+$|$)", ".forward", name)
        draft = self._forward.get(forward)
        if draft is None:
            call = ReadCall(
                self._place.step, module, op, (), self._place.rank, kind, Phase.BACKWARD
            )
            self._forward[forward] = draft = Draft((number, 1, 0, 0), call)
            self.drafts.append(draft)
        of_module = kind is CallKind.MODULE
        found = [
            *self._leaves(body.get("input"), "result", Role.GRAD_OUTPUT),
            *self._leaves(
                body.get("output"), "args" if of_module else OF_LAST_FUNCTION[:-1], Role.GRAD_INPUT
            ),
        ]
        for place, one in enumerate(found, 1):
            draft.tensors.append(((number, 1, 0, place), replace(one, phase=Phase.BACKWARD)))

    def _gradients(self, number: int, module: str, body: Any) -> None:
        found = self._leaves(body, module, Role.PARAM_GRAD)
        for place, one in enumerate(found):
            call = ReadCall(
                self._place.step, module, "accumulate_grad", (), self._place.rank, CallKind.GRADIENT, Phase.BACKWARD
            )  # fmt: skip
            self.drafts.append(
                Draft((number, 1, place, 0), call, tensors=[((number, 1, place, 1), one)])
            )

    def _saved(self, number: int, name: str, is_gradient: bool, count: str, body: Any) -> None:
        """What the script asked for by `save`, and its gradients."""
        if is_gradient and f"{name}.{count}" in self._forward:
            draft = self._forward[f"{name}.{count}"]
        else:
            call = ReadCall(self._place.step, name, "save", (), self._place.rank)
            self._forward[f"{name}.{count}"] = draft = Draft((number, 1, 0, 0), call)
            self.drafts.append(draft)
        role, phase = (
            (Role.GRAD_OUTPUT, Phase.BACKWARD) if is_gradient else (Role.OUTPUT, Phase.FORWARD)
        )
        for place, one in enumerate(self._leaves(body, "result", role), 1):
            draft.tensors.append(((number, 1, 0, place), replace(one, phase=phase)))

    def _nest(self) -> None:
        """Put calls into the modules that they were made in, which begin right before the first of theirs."""
        begun: set[str] = set()
        for name, draft in list(self._forward.items()):
            above = list(self._around(name))
            if above:
                draft.parent = self._forward[above[0]]
                if draft.call.kind is CallKind.OPERATOR:
                    around = draft.parent.call
                    draft.call = replace(draft.call, module=around.module, module_class=around.op)
            if draft.call.phase is Phase.FORWARD:
                first = draft.key[0]
                for depth, module in enumerate(reversed(above)):
                    if module not in begun:
                        begun.add(module)
                        _begin(self._forward[module], first, depth)

    def _around(self, name: str) -> Iterator[str]:
        """Modules around a call that were dumped, innermost first."""
        for _ in range(_MODULE_DEPTH):
            name = self._parents.get(name, "")
            if not name:
                return
            if name in self._forward and self._forward[name].call.kind is CallKind.MODULE:
                yield name
        raise CorruptError(
            self._place.folder / "construct.json",
            "a module lies within itself",
            advice="dump again",
        )


def _begin(draft: Draft, first: int, depth: int) -> None:
    """Let a module and what goes into it come before the first of its calls."""
    draft.key = (first, 0, depth, 0)
    draft.tensors = [
        ((first, 0, depth, key[3]) if one.role is Role.INPUT else key, one)
        for key, one in draft.tensors
    ]
