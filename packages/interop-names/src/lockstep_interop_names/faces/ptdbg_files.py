"""Writes the files of ptdbg_ascend from a recording: `rank0/dump.pkl`, lines of JSON, and a `.npy` for each tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.files import replacing
from lockstep.recordings import Array, Call, Phase, RankRecording, TensorRecord
from lockstep_interop_names.faces.api_calls import ApiNumbers, ApiPass, passes_of, place_of
from lockstep_interop_names.faces.dump_choice import ChosenPasses, DumpChoice

VERSION = "v2.0"
"""The version whose layout is written."""

_MARK = "_"
_STEP = 1
_NUMBERS = (bool, int, float)


@dataclass(slots=True)
class DumpFiles:
    """The files of one rank, to which each dump of a process adds.

    folder: The rank's, `ptdbg_dump_v2.0/rank0`.
    choice: What is to be dumped.
    numbers: Of the calls so far.
    tensors: How many have a file.
    without_elements: Labels of those that the recording has no elements of, as it has none of sparse ones: no line
        tells of them.
    """

    folder: Path
    choice: DumpChoice
    numbers: ApiNumbers
    tensors: int = 0
    without_elements: list[str] = field(default_factory=list)
    _dumps: int = field(default=0)

    @property
    def pkl(self) -> Path:
        """The file of lines."""
        return self.folder / f"{self.choice.stem}.pkl"

    def add(self, recording: Path | None, rank: RankRecording) -> None:
        """Write the records of a rank after this process's own, or in place of what others left.

        Which recording that is stands beside, where it is to stay. The file of lines comes last and at once: where
        writing ends early, there is no dump.

        Raises OSError if it cannot be written. Raises CorruptError if the recording is damaged.
        """
        data = self.folder / self.choice.stem
        earlier = self.pkl.read_bytes() if self._dumps else b""
        if not self._dumps:
            self.pkl.unlink(missing_ok=True)
            data.mkdir(parents=True, exist_ok=True)
            for file in data.glob("*.npy"):
                file.unlink()
        with replacing(self.pkl) as aside, aside.open("wb") as lines:
            lines.write(earlier)
            for line in self._lines(rank, data):
                lines.write(json.dumps(line).encode() + b"\n")
        self._dumps += 1
        note_recording(self.pkl, recording if self._dumps == 1 else None)

    def _lines(self, rank: RankRecording, data: Path) -> Iterator[list[Any]]:
        chosen = ChosenPasses(self.choice)
        for step in rank.steps:
            for one in passes_of(rank.calls(step), self.numbers):
                if chosen.wants(one.name(_MARK)):
                    yield from self._pass(one, data, rank.source_lines)
            rank.close_tensors()

    def _pass(
        self, one: ApiPass, data: Path, sources: Mapping[str, Mapping[int, str]]
    ) -> Iterator[list[Any]]:
        name = one.name(_MARK)
        if self.choice.mode != "stack":
            for what, records in (("input", one.entering), ("output", one.leaving)):
                taken = {
                    f"{name}_{what}.{place_of(record, one.call)}": record for record in records
                }
                for label, record in taken.items():
                    yield from self._tensor(label, record, data)
                if what == "input" and one.phase is Phase.FORWARD and self.choice.scalars:
                    yield from self._scalars(name, one.call)
        if self.choice.has_stacks and one.phase is Phase.FORWARD:
            frames = [
                [frame.file, frame.line, frame.function, sources.get(frame.file, {}).get(frame.line, "").strip()]
                for frame in one.call.stack
            ]  # fmt: skip
            yield [f"{name}_stack_info", frames]

    def _tensor(self, label: str, record: TensorRecord, data: Path) -> Iterator[list[Any]]:
        floating = record.dtype.startswith(("float", "bfloat", "complex"))
        if not (floating or self.choice.scalars):
            return
        try:
            array = record.load()
        except LookupError:
            self.without_elements.append(label)
            return
        if self.choice.wants_file(label):
            np.save(data / f"{label}.npy", array)
            self.tensors += 1
        yield [label, _STEP, [], f"torch.{record.dtype}", list(record.shape), _numbers_of(array)]

    @staticmethod
    def _scalars(name: str, call: Call) -> Iterator[list[Any]]:
        """Plain numbers among the arguments; each is its own largest, smallest and mean."""
        for key, value in call.arguments.items():
            start, _, place = key.partition(".")
            if start in ("args", "kwargs") and isinstance(value, _NUMBERS):
                kind = f"<class '{type(value).__name__}'>"
                yield [f"{name}_input.{place}", _STEP, [], kind, [], [value] * 3]


def _numbers_of(array: Array) -> list[Any]:
    """Largest, smallest and mean, of magnitudes where elements are complex; [] each where there is no element."""
    if not array.size:
        return [[], [], []]
    with np.errstate(all="ignore"):
        values = (np.abs(array) if array.dtype.kind == "c" else array).astype(np.float64)
        return [float(values.max()), float(values.min()), float(values.mean())]


def note_recording(pkl: Path, recording: Path | None) -> None:
    """Note beside a dump which recording it was written from; nothing where it is of several."""
    note = pkl.with_suffix(".recording.json")
    if recording is None:
        note.unlink(missing_ok=True)
        return
    text = json.dumps({"recording": recording.name, "sha256": _digest(pkl)})
    with replacing(note) as aside:
        aside.write_text(text)


def noted_recording(pkl: Path) -> Path | None:
    """The recording that a dump was written from, where it lies beside and the dump is as it was written."""
    try:
        note = json.loads(pkl.with_suffix(".recording.json").read_text())
        name, digest = note["recording"], note["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    beside = pkl.parent.parent / Path(str(name)).name
    return beside if beside.is_dir() and digest == _digest(pkl) else None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
