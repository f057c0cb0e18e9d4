"""Reading a trace that torch.profiler or another Kineto wrote (Chrome's trace format, JSON) into a profile."""

from __future__ import annotations

import bisect
import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError, NotARecordingError, RecordingError
from lockstep.files import fetched, url_of
from lockstep_tune.ascend import read_summary
from lockstep_tune.marks import AGAIN, BESIDE, LINE, MODULE, STEP, TRACE
from lockstep_tune.pieces import pieces_of
from lockstep_tune.profile import Compile, Operator, Phase, Piece, Profile, Recomputation
from lockstep_tune.trace_events import (
    Event,
    host_event,
    inherit,
    is_range,
    nest,
    parent_name,
    step_of,
)

_HOST = frozenset({"cpu_op", "user_annotation", "python_function"})
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_FETCHED = frozenset({TRACE, BESIDE, f"rank0/{TRACE}", f"rank0/{BESIDE}"})
"""What is read of a folder in object storage, in which the traces of further ranks may lie."""


def read_profile(path: Path) -> Profile:
    """Read one rank's profile: a folder of `lockstep profile -o` (rank 0 of several), a trace of torch.profiler, a CSV;
    or the URL of one in object storage.

    Raises RecordingError if there is no such file, or it is cut or no trace.
    """
    with fetched(path, lambda name: name in _FETCHED) as here:
        found = _read(here)
    return replace(found, name=found.name.replace(str(here), url_of(path) or str(path)))


def _read(path: Path) -> Profile:
    if path.suffix == ".csv":
        return read_summary(path)
    if path.is_dir() and not (path / TRACE).exists():
        path = path / "rank0"
    file = path / TRACE if path.is_dir() else path
    events = trace_events(file)
    beside = _beside(path / BESIDE) if path.is_dir() else {}
    return _Reading(events, beside).profile(str(path))


def trace_events(file: Path) -> list[dict[str, Any]]:
    """The events of a trace in Chrome's format, gzipped or not.

    Raises RecordingError if it cannot be read, is cut or no trace.
    """
    try:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        found = json.loads(content)
    except OSError as error:
        raise RecordingError(file, f"cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error) as error:
        raise CorruptError(file, "the trace is cut", advice="profile again") from error
    except (ValueError, RecursionError) as error:
        reason = str(error)[:80]
        raise CorruptError(
            file,
            f"no trace in Chrome's format (JSON), or one that is cut: {reason}",
            advice="profile again",
        ) from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list) or not any(
        isinstance(one, dict) and one.get("ph") == "X" for one in events
    ):
        raise NotARecordingError(
            file, "JSON, but no trace of torch.profiler: it has no events with a duration"
        )
    return [one for one in events if isinstance(one, dict)]


def _beside(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class _Reading:
    """Puts the events of a trace together: what calls what, in which step, from where."""

    def __init__(self, events: list[dict[str, Any]], beside: dict[str, Any]) -> None:
        self._beside = beside
        self._flops = {int(key): value for key, value in beside.get("flops", {}).items()}
        host = [host_event(one) for one in events if is_range(one, _HOST)]
        self._steps = sorted(
            (one for one in host if one.name.startswith(STEP) and self._is_whole(one)),
            key=lambda one: one.start,
        )
        self._host = [one for one in host if not one.name.startswith(STEP)]
        self._has_python = any(one.kind == "python_function" for one in self._host)
        for one in self._host:
            step = step_of(one, self._steps)
            if step is not None:  # the optimizer's range goes on into what is between two steps
                one.end = min(one.end, step.end)
        by_thread: dict[Any, list[Event]] = defaultdict(list)
        for one in self._host:
            by_thread[one.thread].append(one)
        for ranges in by_thread.values():
            nest(ranges)
        self._by_thread = by_thread
        self._main = self._steps[0].thread if self._steps else _busiest(by_thread)
        device = [one for one in events if is_range(one, _DEVICE)]
        self._has_device = bool(device)
        self._alone = self._add_device_times(device)
        self._add_memory(one for one in events if one.get("name") == "[memory]")
        self._place()

    def _is_whole(self, step: Event) -> bool:
        """Whether a step was over before the training was."""
        unfinished = self._beside.get("unfinished")
        return unfinished is None or step.name != f"{STEP}{unfinished}"

    def profile(self, name: str) -> Profile:
        """All of it as a profile."""
        timed = self._timed_steps()
        groups: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
        for one in self._host:
            if one.is_operator and (not timed or step_of(one, timed) is not None):
                groups[_key(one)].append(one)
        count = max(len(timed), 1)
        in_time = sorted(groups.items(), key=lambda group: group[1][0].start)
        operators = [
            self._operator(key, at, found, count) for at, (key, found) in enumerate(in_time)
        ]
        operators += self._alone if not operators else []
        noted = self._beside
        plain = noted.get("plain_step_s")
        return Profile(
            name,
            tuple(sorted(operators, key=lambda one: -max(one.self_host_us, one.self_device_us))),
            tuple(one.took for one in timed),
            None if plain is None else 1e6 * plain,
            noted.get("device", "device" if self._has_device else "cpu"),
            noted.get("threads", 0),
            noted.get("cores", 0),
            tuple(_compiles(noted)),
            tuple(self._missing()),
            max((int(step) for step in noted.get("compiled_before", ())), default=0),
            pieces=self._pieces(timed),
            recomputations=self._recomputations(timed),
            waiting=self._waiting(timed),
            threads_set=_place(noted.get("threads_set", "")),
        )

    def _pieces(self, timed: Sequence[Event]) -> tuple[Piece, ...]:
        outermost = [
            one
            for one in self._by_thread.get(self._main, ())
            if one.is_operator and self._outermost(one)
        ]
        return pieces_of(self._steps, timed, outermost, self._beside)

    def _recomputations(self, timed: list[Event]) -> tuple[Recomputation, ...]:
        """What checkpoints compute again, by the line that asks for it."""
        within = [one for one in self._host if one.again and step_of(one, timed) is not None]
        groups: dict[str, list[Event]] = defaultdict(list)
        for one in within:
            groups[one.again].append(one)
        count = max(len(timed), 1)
        found = []
        for place, events in groups.items():
            ranges = [
                one for one in events
                if one.name.startswith(AGAIN) and not (one.parent is not None and one.parent.again)
            ]  # fmt: skip
            found.append(
                Recomputation(
                    place, sum(one.took for one in ranges) / count, len(ranges) / count,
                    sum(one.allocated for one in events) / count,
                )
            )  # fmt: skip
        return tuple(found)

    def _waiting(self, timed: list[Event]) -> float | None:
        """The share of these steps in which the thread that trains had no core."""
        waits, walls = self._beside.get("waits_s", {}), self._beside.get("walls_s", {})
        numbers = [one.name.removeprefix(STEP) for one in timed]
        known = [(waits[one], walls[one]) for one in numbers if one in waits and one in walls]
        whole = sum(wall for _, wall in known)
        return sum(wait for wait, _ in known) / whole if whole else None

    # --- steps ---------------------------------------------------------------------------------------

    def _timed_steps(self) -> list[Event]:
        """The steps whose times count: those without marks, where there are such."""
        marked = self._marked_step()
        plain = [one for one in self._steps if one is not marked]
        return plain or (self._steps if self._beside.get("unfinished") is None else [])

    def _marked_step(self) -> Event | None:
        marks = [one.start for one in self._host if one.name.startswith((LINE, MODULE))]
        if not marks or not self._steps:
            return None
        middle = sorted(marks)[len(marks) // 2]
        return next((one for one in self._steps if one.start <= middle < one.end), None)

    # --- from where ----------------------------------------------------------------------------------

    def _place(self) -> None:
        """Give every operator its phase, its module and its line."""
        forward: dict[int, Event] = {}
        for one in sorted(self._host, key=lambda one: one.start):
            inherit(one)
            sequence = one.arguments.get("Sequence number")
            if sequence is not None and one.phase is not Phase.BACKWARD:
                forward.setdefault(int(sequence), one)
        for one in self._host:
            made = forward.get(one.sequence) if one.phase is Phase.BACKWARD else None
            if made is not None:
                one.module, one.source = made.module, made.source or one.source
        marked = self._marked_step()
        if marked is not None:
            self._spread(marked)
        self._add_python_times()

    def _spread(self, marked: Event) -> None:
        """Give the operators of the other steps the places of the marked one: the same, in the same order."""
        known: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
        others: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
        for one in sorted(self._host, key=lambda one: one.start):
            if one.is_operator:
                step = step_of(one, self._steps)
                key = one.phase, one.name, str(one.arguments.get("Input Dims"))
                if step is marked:
                    known[key].append(one)
                else:
                    others[(*key, id(step))].append(one)
        for key, found in others.items():
            there = known.get(key[:-1], [])
            for turn, one in enumerate(found if there else ()):
                like = there[turn % len(there)]
                one.module, one.source = like.module, like.source
                one.stack, one.evaluates, one.like = like.stack, like.evaluates, like

    def _add_python_times(self) -> None:
        """Put the time between two operators that Python calls to the second one."""
        for ranges in [self._by_thread[self._main]] if self._main is not None else []:
            outermost = sorted(
                (one for one in ranges if one.is_operator and self._outermost(one)),
                key=lambda one: one.start,
            )
            starts = [one.start for one in self._steps]
            before = 0.0
            for one in outermost:
                at = bisect.bisect_right(starts, one.start)
                began = max(before, starts[at - 1]) if at else before
                one.python = max(one.start - began, 0.0) if began else 0.0
                before = max(before, one.end)

    # --- the device and memory -------------------------------------------------------------------------

    def _add_device_times(self, device: list[dict[str, Any]]) -> list[Operator]:
        """Put kernels to the operators that launch them; returns those of none, where the host is not in the trace."""
        by_number = {
            one.arguments["External id"]: one
            for one in self._host
            if "External id" in one.arguments and one.is_operator
        }
        alone: dict[str, list[float]] = defaultdict(list)
        for kernel in device:
            arguments = kernel.get("args") or {}
            took = float(kernel.get("dur", 0.0))
            found: Event | None = by_number.get(arguments.get("External id"))
            if found is None:
                alone[str(kernel.get("name"))].append(took)
                continue
            found.device += took
            outer = found.parent
            while outer is not None:
                outer.inner_device += took
                outer = outer.parent
        return [
            Operator(name, "", Phase.FORWARD, calls=len(times), self_device_us=sum(times), device_us=sum(times))
            for name, times in alone.items()
        ]  # fmt: skip

    def _add_memory(self, events: Iterable[dict[str, Any]]) -> None:
        """Put what is allocated to the innermost operator around it."""
        starts = {
            thread: [one.start for one in ranges] for thread, ranges in self._by_thread.items()
        }
        for one in events:
            thread = one.get("tid")
            taken = float((one.get("args") or {}).get("Bytes", 0))
            at = bisect.bisect_right(starts.get(thread, []), float(one.get("ts", 0.0))) - 1
            inside = self._by_thread[thread][at] if at >= 0 else None
            while inside is not None and not (
                inside.end >= float(one["ts"]) and inside.is_operator
            ):
                inside = inside.parent
            if inside is not None and taken > 0:
                inside.allocated += taken

    # --- rows ------------------------------------------------------------------------------------------

    def _operator(self, key: tuple[Any, ...], at: int, found: list[Event], count: int) -> Operator:
        name, module, phase, source, shapes, dtypes, parent = key
        first = found[0]
        numbers = (one.arguments.get("External id") for one in found)
        return Operator(
            name, module, phase, source, len(found) / count,
            sum(max(one.took - one.inner, 0.0) for one in found) / count,
            sum(one.took for one in found) / count,
            sum(one.python for one in found) / count,
            sum(one.device for one in found) / count,
            sum(one.device + one.inner_device for one in found) / count,
            shapes, dtypes,
            sum(self._flops.get(int(number), 0) for number in numbers if number is not None) / count,
            sum(one.allocated for one in found) / count,
            _strided(first.arguments), self._outermost(first), parent,
            _cast(name, first.arguments), at, self._by_step(found), self._least_python(found),
        )  # fmt: skip

    def _by_step(self, found: list[Event]) -> tuple[float, ...]:
        """What these add to each timed step."""
        by_step = {id(step): 0.0 for step in self._timed_steps()}
        for one in found:
            own = one.device or max(one.took - one.inner, 0.0) + one.python
            at = id(step_of(one, self._steps))
            by_step[at] = by_step.get(at, 0.0) + own
        return tuple(by_step.values())

    def _least_python(self, found: list[Event]) -> float:
        """Microseconds of Python before these, of the step in which that was least."""
        by_step: dict[int, float] = defaultdict(float)
        for one in found:
            by_step[id(step_of(one, self._steps))] += one.python
        return min(by_step.values())

    def _outermost(self, event: Event) -> bool:
        """Whether Python calls it, on the thread that trains."""
        return event.thread == self._main and not parent_name(event)

    def _missing(self) -> list[str]:
        missing = []
        unfinished, wanted = self._beside.get("unfinished"), self._beside.get("wanted", 0)
        if not self._steps:
            missing.append("the trace marks no steps, so times are of all of it")
        elif unfinished is not None and len(self._timed_steps()) < wanted:
            missing.append(f"the training ended in step {unfinished}, before all {wanted} steps")
        has_marks = any(one.name.startswith((LINE, MODULE)) for one in self._host)
        if not (self._has_python or has_marks):
            missing.append(
                "it has no call stacks (with_stack=True), so lines and modules are not known"
            )
        if not any("Input Dims" in one.arguments for one in self._host):
            missing.append("it has no shapes (record_shapes=True)")
        if self._beside.get("compiles"):
            missing.append("the inside of compiled functions has no lines and no modules")
        return missing


def _busiest(by_thread: Mapping[Any, list[Event]]) -> Any:
    return max(
        by_thread,
        key=lambda thread: sum(one.took - one.inner for one in by_thread[thread]),
        default=None,
    )


def _key(event: Event) -> tuple[Any, ...]:
    arguments = event.arguments
    return (
        event.name, event.module, event.phase, event.source, _shapes(arguments), _dtypes(arguments),
        parent_name(event),
    )  # fmt: skip


def _shapes(arguments: Mapping[str, Any]) -> str:
    dims = arguments.get("Input Dims")
    return (
        " ".join(str(one).replace(" ", "") for one in dims if one) if isinstance(dims, list) else ""
    )


def _dtypes(arguments: Mapping[str, Any]) -> str:
    kinds = arguments.get("Input type")
    if not isinstance(kinds, list):
        return ""
    return " ".join(str(one) for one in kinds if one and one not in ("Scalar", "ScalarList"))


def _strided(arguments: Mapping[str, Any]) -> bool:
    """Whether the first input is not contiguous."""
    dims, strides = arguments.get("Input Dims"), arguments.get("Input Strides")
    if not (isinstance(dims, list) and isinstance(strides, list) and dims and strides):
        return False
    shape, steps = dims[0], strides[0]
    if not (isinstance(shape, list) and isinstance(steps, list)) or len(shape) != len(steps):
        return False
    expected = 1
    for size, stride in zip(reversed(shape), reversed(steps), strict=True):
        if not (isinstance(size, int) and isinstance(stride, int)):
            return False
        if size != 1 and stride != expected:
            return True
        expected *= size
    return False


_DTYPES = {
    "5": "c10::Half", "6": "float", "7": "double", "15": "c10::BFloat16", "3": "int", "4": "long int", "11": "bool",
}  # fmt: skip
"""What a trace calls the dtypes whose numbers stand among the arguments (c10/core/ScalarType.h)."""


def _cast(name: str, arguments: Mapping[str, Any]) -> str:
    """From which dtype to which an operator copies; "" where it changes none."""
    kinds, given = arguments.get("Input type"), arguments.get("Concrete Inputs")
    if name != "aten::_to_copy" or not kinds or not isinstance(given, list) or len(given) < 2:
        return ""
    to = _DTYPES.get(str(given[1]), "")
    return f"{kinds[0]} to {to}" if to and to != kinds[0] else ""


def _place(text: str) -> str:
    """`7:/train.py` as `/train.py:7`."""
    line, _, file = text.partition(":")
    return f"{file}:{line}" if file else ""


def _compiles(noted: Mapping[str, Any]) -> Iterable[Compile]:
    before = {int(step): count for step, count in noted.get("compiled_before", {}).items()}
    settled = before.get(min((step for step in before if step > 0), default=0), 0)
    for one in noted.get("compiles", ()):
        yield Compile(
            one["function"], one["file"], one["line"], one["took_s"], one["again_because"],
            tuple(one["breaks"]), one["number"] >= settled,
        )  # fmt: skip
