"""The operators that a recorded training ran: how often in which phase, on tensors of which form."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep.compare import record_again
from lockstep.errors import UsageError
from lockstep.recordings import Call, CallKind, Phase, RankRecording, Recording, Role, TensorRecord
from lockstep.terminal import printable
from lockstep_operators.support.dispatcher_names import name_of_api

_DISPATCHED = re.compile(r"(?!torch\.)(\w+)\.(\w+)\.(\w+)")
_PLUMBING = frozenset({"profiler", "prim", "prims"})
"""Namespaces of what computes nothing."""
_PLACES_ITSELF = (Role.GRAD_INPUT, Role.PARAM_GRAD)


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor that an operator took; `strides` are None where it lies row after row."""

    argument: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.shape))})" + ("*" if self.strides is not None else "")


Form = tuple[TensorForm, ...]


@dataclass(slots=True)
class RanOperator:
    """One operator, in all calls of it.

    name: The dispatcher's, or that of a function of torch's API where that level was recorded.
    of_dispatcher: Which of the two.
    calls: How many, by phase.
    forms: The forms of what they took, each with how often it came and one call of it.
    dtypes: Of all tensors that they took and gave.
    seconds: What they take in a step of a rank, each run alone; NaN where that is not known.
    """

    name: str
    of_dispatcher: bool
    calls: Counter[Phase] = field(default_factory=Counter)
    forms: dict[Form, tuple[int, Call]] = field(default_factory=dict)
    dtypes: set[str] = field(default_factory=set)
    seconds: float = math.nan

    @property
    def asked_as(self) -> str:
        """The operator's name in a list of the dispatcher's operators."""
        return self.name if self.of_dispatcher else name_of_api(self.name)

    def add(self, call: Call) -> None:
        """One call more."""
        taken = call.with_role(Role.INPUT)
        self.dtypes.update(one.dtype for one in (*taken, *call.with_role(Role.OUTPUT)))
        form = tuple(_form(one) for one in taken)
        count, first = self.forms.get(form, (0, call))
        self.forms[form] = (count + 1, first)
        self.calls[call.site.phase] += 1
        if not self.of_dispatcher and call.with_role(*_PLACES_ITSELF):
            self.calls[Phase.BACKWARD] += 1

    @property
    def commonest(self) -> Form:
        """The form that came most often."""
        return max(self.forms, key=lambda form: self.forms[form][0])


@dataclass(frozen=True, slots=True)
class Ran:
    """The operators that ran, and the source of that knowledge.

    operators: By name.
    of_dispatcher: Whether these are the dispatcher's operators, rather than functions of the API.
    collectives: What ranks say to each other, which the backend of their process group runs.
    steps, ranks: How many were recorded.
    torch, devices: As the recording says.
    not_seen: What ran out of sight, in sentences.
    is_whole: Whether no operator is known to have run that is not among these.
    again: The command that records the dispatcher's operators.
    """

    operators: tuple[RanOperator, ...]
    collectives: tuple[RanOperator, ...]
    of_dispatcher: bool
    steps: int
    ranks: int
    torch: str
    devices: tuple[str, ...]
    not_seen: tuple[str, ...]
    again: str
    is_whole: bool


def ran_in(recording: Recording) -> Ran:
    """The operators in a recording.

    Raises UsageError if it holds none, as where modules alone were recorded. Raises CorruptError if it is damaged.
    """
    of_dispatcher = recording.manifest.options.level == "aten"
    again = record_again(recording, steps="0:2", save="stats", level="aten", word="aten").line
    found: dict[str, RanOperator] = {}
    for rank in recording.ranks.values():
        for name, call in _calls(rank, of_dispatcher=of_dispatcher):
            found.setdefault(name, RanOperator(name, of_dispatcher)).add(call)
    if not found:
        raise UsageError(
            f"{recording.path}: holds no operator; record it with",
            command=again,
        )
    ranks = recording.ranks.values()
    manifests = [rank.manifest for rank in ranks]
    gaps = [gap for one in manifests for gap in one.not_seen]
    return Ran(
        operators=tuple(one for one in found.values() if not _is_collective(one.name)),
        collectives=tuple(one for one in found.values() if _is_collective(one.name)),
        of_dispatcher=of_dispatcher,
        steps=max(len(rank.steps) for rank in ranks),
        ranks=len(manifests),
        torch=", ".join(sorted({one.packages.get("torch", "") for one in manifests} - {""})),
        devices=tuple(sorted({device for one in manifests for device in one.devices})),
        again=again,
        not_seen=tuple(dict.fromkeys(f"{gap.what}: {gap.reason}" for gap in gaps)),
        is_whole=of_dispatcher and not any(gap.hides_operators for gap in gaps),
    )


def _calls(rank: RankRecording, *, of_dispatcher: bool) -> Iterator[tuple[str, Call]]:
    """Calls of operators with what each is called, those that only call others left out."""
    for step in rank.steps:
        calls = rank.calls(step)
        parents = {call.parent for call in calls}
        for call in calls:
            if call.kind is not CallKind.OPERATOR or not _has_tensors(call.records):
                continue
            if not of_dispatcher:
                yield printable(call.site.op), call
                continue
            named = _DISPATCHED.fullmatch(call.site.op)
            # Above the dispatcher stands, under the same name, the call that the script made.
            if named is not None and call.id not in parents and named[1] not in _PLUMBING:
                overload = "" if named[3] == "default" else f".{named[3]}"
                yield f"{named[1]}::{named[2]}{overload}", call


def _is_collective(name: str) -> bool:
    return name.partition("::")[0] in ("c10d", "_c10d_functional")


def _has_tensors(records: tuple[TensorRecord, ...]) -> bool:
    return any(one.role in (Role.INPUT, Role.OUTPUT) for one in records)


def _form(record: TensorRecord) -> TensorForm:
    strides = None if record.layout is None else record.layout.strides
    if strides is not None and all(
        extent <= 1 or stride == math.prod(record.shape[axis + 1 :])
        for axis, (extent, stride) in enumerate(zip(record.shape, strides, strict=True))
    ):
        strides = None
    return TensorForm(record.argument or record.name, record.dtype, record.shape, strides)
