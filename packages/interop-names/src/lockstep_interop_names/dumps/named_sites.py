"""Which call a tensor belongs to, by a name that tells it: `conv1.Conv2D.12.3.1664.output.0`."""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from lockstep.errors import UsageError
from lockstep.recordings import CallKind, LaterTensor, Phase, ReadCall, ReadTensor, Role
from lockstep.terminal import listed
from lockstep_interop_names.dumps.timeline import Clock, Draft

_ROLES = "|".join(sorted((role.value for role in Role), key=len, reverse=True))
_FIELDS = {
    "module": r".*", "op": r".+", "role": _ROLES, "index": r"\d{1,6}", "name": r".+", "call": r"\d{1,9}",
    "step": r"\d{1,9}", "rank": r"\d{1,6}", "time": r"\d{1,20}", "any": r".*",
}  # fmt: skip
_BACKWARD = frozenset({Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD})
_OUTSIDE = "(model)"


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of one tensor, as far as its name tells.

    module, op, call, step, rank, role, index, name: As in a recording; an operator "" is a module of which nothing else
        is known, and a call -1 is told by its time.
    time: When its call was; () where the name does not tell.
    """

    module: str = ""
    op: str = ""
    call: int = -1
    step: int = 0
    rank: int = 0
    role: Role = Role.OUTPUT
    index: int = 0
    name: str = ""
    time: tuple[int, ...] = ()


def pattern_of(text: str) -> re.Pattern[str]:
    """Names that are built as a text says: `{module}.{role}.{index}`.

    Raises UsageError if it has a field that there is not, one twice, or neither a module nor an operator.
    """
    parts = re.split(r"\{(\w*)\}", text)
    fields = parts[1::2]
    told = [one for one in fields if one != "any"]
    if (
        not set(fields) <= set(_FIELDS)
        or len(told) != len(set(told))
        or not {"module", "op"} & set(fields)
    ):
        raise UsageError(
            f"--format ...:{text}: give each of {listed([f'{{{one}}}' for one in _FIELDS], len(_FIELDS))} once at most,"
            " {module} or {op} among them"
        )
    built = [re.escape(parts[0])]
    for field, literal in zip(fields, parts[2::2], strict=True):
        named = f"(?P<{field}>{_FIELDS[field]})" if field != "any" else _FIELDS[field]
        built += [named, re.escape(literal)]
    return re.compile("".join(built))


def spot_of(pattern: re.Pattern[str], name: str) -> Spot | None:
    """Where a tensor of this name belongs; None where the name is not built like that."""
    found = pattern.fullmatch(name)
    if found is None:
        return None
    told = {key: value for key, value in found.groupdict().items() if value is not None}
    number = {key: int(told.get(key, default)) for key, default in _NUMBERS.items()}
    module = told.get("module", "")
    times = [int(told[key]) for key in ("time", "task") if key in told]
    return Spot(
        "" if module == _OUTSIDE else module, told.get("op", ""), number["call"], number["step"], number["rank"],
        Role(told.get("role", "output")), number["index"], told.get("name", ""), tuple(times),
    )  # fmt: skip


_NUMBERS = {"call": -1, "step": 0, "rank": 0, "index": 0}


def calls_of(found: Iterable[tuple[Spot, LaterTensor]]) -> Iterator[ReadCall]:
    """The calls that tensors belong to, rank by rank and step by step, in the order that the names tell.

    Gradients of a call come when all calls have gone forward, in the opposite order, as autograd goes back.
    """
    places: dict[tuple[int, int], dict[tuple[object, ...], list[tuple[Spot, LaterTensor]]]] = {}
    found = list(found)
    parameters = {spot.name for spot, _ in found if spot.role in _OF_PARAMETERS}
    for spot, tensor in found:
        calls = places.setdefault((spot.rank, spot.step), defaultdict(list))
        which = spot.time if spot.call < 0 else spot.call
        kind = _kind_of(spot)
        of = _parameter_of(spot, parameters) if kind in _ONE_EACH else ""
        calls[spot.module, spot.op, which, kind, of].append((spot, tensor))
    clocks: dict[int, Clock] = defaultdict(Clock)
    for (rank, _), calls in sorted(places.items(), key=lambda one: one[0]):
        given = sorted(calls.values(), key=lambda one: min(spot.time for spot, _ in one))
        if not any(spot.time for one in given for spot, _ in one):
            given = _by_flow(given)
        drafts = [_draft(number, tensors) for number, tensors in enumerate(given)]
        _end_behind_inner(drafts)
        yield from clocks[rank].in_order(drafts)


_OF_PARAMETERS = frozenset({Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER})
_ONE_EACH = frozenset({CallKind.OPTIMIZER, CallKind.GRADIENT})
"""Kinds of calls of which each parameter has its own."""


def _parameter_of(spot: Spot, parameters: Collection[str]) -> str:
    """Name of the parameter that an update's tensor belongs to; "" where its name tells none."""
    if spot.role in _OF_PARAMETERS:
        return spot.name
    name = spot.name.partition("|")[
        0
    ]  # as the recorder writes a state: of which parameter, and which
    while name and name not in parameters:
        name = name.rpartition(".")[0]
    return name


def _by_flow(calls: list[list[tuple[Spot, LaterTensor]]]) -> list[list[tuple[Spot, LaterTensor]]]:
    """Calls in the order of their names, but each behind those that made what goes into it."""
    makers: dict[str | None, int] = {}
    for number, call in enumerate(calls):
        for spot, tensor in call:
            if spot.role is Role.OUTPUT and math.prod(tensor.shape) > 1:
                makers.setdefault(tensor.digest, number)
    behind = [
        {
            makers[tensor.digest]
            for spot, tensor in call
            if spot.role is Role.INPUT and tensor.digest in makers
        }
        - {at}
        for at, call in enumerate(calls)
    ]
    users: dict[int, list[int]] = defaultdict(list)
    for number, before in enumerate(behind):
        for one in before:
            users[one].append(number)
    ready, found = [number for number, before in enumerate(behind) if not before], dict[int, None]()
    while ready:
        number = heapq.heappop(ready)
        found[number] = None
        for user in users[number]:
            behind[user].discard(number)
            if not behind[user]:
                heapq.heappush(ready, user)
    # What is left goes round in a circle: contents that are equal by chance.
    return [calls[number] for number in dict.fromkeys([*found, *range(len(calls))])]


def _draft(number: int, tensors: list[tuple[Spot, LaterTensor]]) -> Draft:
    first = tensors[0][0]
    kind = _kind_of(first)
    phase = _PHASES.get(kind, Phase.FORWARD)
    # Where no class is known, it is one of its own: calls with other names are not put together for their classes.
    known_as = first.op if "." in first.op else f"node {first.module or 'the model'}"
    call = ReadCall(
        first.step, first.module, first.op, (), first.rank, kind, phase,
        module_class=known_as if kind in (CallKind.MODULE, CallKind.INIT) else "",
    )  # fmt: skip
    timed = first.call >= 0 and bool(first.time)  # each tensor tells its own moment then
    draft = Draft(
        (0, *min(one.time for one, _ in tensors)) if timed else (_TURNS.get(kind, 1), number, 0, 0),
        call,
    )
    for spot, tensor in sorted(tensors, key=lambda one: (_ORDER.index(one[0].role), one[0].index)):
        back = kind in (CallKind.MODULE, CallKind.OPERATOR) and spot.role in _BACKWARD
        key = (
            (2, -number, 0, len(draft.tensors))
            if back
            else (*draft.key[:3], 1 + len(draft.tensors))
        )
        if timed:
            key = (0, *spot.time, 1)
        read = ReadTensor(
            spot.role,
            _name_of(spot),
            tensor,
            index=spot.index,
            phase=Phase.BACKWARD if back else None,
        )
        draft.tensors.append((key, read))
    return draft


def _end_behind_inner(drafts: list[Draft]) -> None:
    """Let a module return behind the calls whose paths lie in it, where no tensor tells its own moment."""
    for number, draft in enumerate(drafts):
        if draft.call.kind is not CallKind.MODULE or draft.key[0] != 1:
            continue
        path, last = draft.call.module, number
        for at, other in enumerate(drafts[number + 1 :], number + 1):
            inside = not path or f"{other.call.module}.".startswith(f"{path}.")
            if (
                other.key[0] == 1
                and inside
                and other.call.kind is CallKind.MODULE
                and other.call.module == path
            ):
                break
            last = at if other.key[0] == 1 and inside else last
        draft.tensors = [
            ((1, last, 1, -number) if one.role is Role.OUTPUT else key, one)
            for key, one in draft.tensors
        ]


_ORDER = list(Role)
_PHASES = {
    CallKind.INIT: Phase.INIT, CallKind.DATA: Phase.DATA, CallKind.GRADIENT: Phase.BACKWARD,
    CallKind.OPTIMIZER: Phase.OPTIMIZER,
}  # fmt: skip
_TURNS = {CallKind.INIT: -1, CallKind.DATA: 0, CallKind.GRADIENT: 3, CallKind.OPTIMIZER: 4}


def _kind_of(spot: Spot) -> CallKind:
    """What was called: a class is spelled with a capital letter, and parameters of none are as they were at first."""
    if spot.op.startswith("torch.optim.") or spot.role in (
        Role.PARAM_AFTER,
        Role.STATE,
        Role.STATE_AFTER,
    ):
        return CallKind.OPTIMIZER
    if spot.role in (Role.PARAM, Role.BUFFER):
        return CallKind.INIT
    if spot.role is Role.LOSS:
        return CallKind.LOSS
    if spot.op in ("accumulate_grad", "batch"):
        return CallKind.GRADIENT if spot.op == "accumulate_grad" else CallKind.DATA
    is_class = not spot.op or spot.op.rpartition(".")[2][:1].isupper()
    return CallKind.MODULE if is_class else CallKind.OPERATOR


def _name_of(spot: Spot) -> str:
    if spot.name:
        return spot.name
    if spot.role in (Role.INPUT, Role.GRAD_INPUT):
        return f"args.{spot.index}"
    return f"result.{spot.index}" if spot.index else "result"
