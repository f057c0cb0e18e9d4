"""Writes the files of mindstudio-probe from a recording: dump.json, stack.json, construct.json and tensors."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.files import replacing
from lockstep.recorder import save_tensor
from lockstep.recordings import Call, RankRecording, TensorRecord, is_floating
from lockstep_interop_names.faces.dump_choice import ChosenPasses, DumpChoice
from lockstep_interop_names.faces.probe_records import ProbeRecords, stack_lines

TENSORS = "dump_tensor_data"


@dataclass(frozen=True, slots=True)
class ProbeChoice:
    """The settings of a config.json.

    task: "statistics", "tensor" or "overflow_check".
    level: "L0", "L1" or "mix".
    checksums: Whether a CRC-32 stands in place of numbers (`summary_mode` "md5").
    chosen: Which records, and which of them with files.
    """

    task: str = "statistics"
    level: str = "L1"
    checksums: bool = False
    chosen: DumpChoice = field(default_factory=DumpChoice)

    @property
    def needs_elements(self) -> bool:
        """Whether whole tensors are to be recorded."""
        return self.has_files or self.checksums

    @property
    def has_files(self) -> bool:
        """Whether tensors are written to files."""
        return self.task != "statistics"


class ProbeFiles:
    """The files of one rank in one step, to which each dump within that step adds.

    folder: `step0/rank0`.
    choice: What is dumped.
    """

    def __init__(self, folder: Path, choice: ProbeChoice) -> None:
        self.folder = folder
        self.records = 0
        self._choice = choice
        self._made = ProbeRecords(choice.level, self._leaf)
        self._passes = ChosenPasses(choice.chosen)
        self._data: dict[str, Any] = {}
        self._parents: dict[str, str | None] = {}
        self._stacks: dict[tuple[str, ...], list[str]] = {}

    def add(self, rank: RankRecording) -> None:
        """Write the records of a rank, after those that this process wrote before.

        dump.json comes last and at once: where writing ends early, there is no dump.

        Raises OSError if it cannot be written. Raises CorruptError if the recording is damaged.
        """
        tensors = self.folder / TENSORS
        if not self._data:
            (self.folder / "dump.json").unlink(missing_ok=True)
            for file in tensors.glob("*.pt"):
                file.unlink()
        (tensors if self._choice.has_files else self.folder).mkdir(parents=True, exist_ok=True)
        for step in rank.steps:
            self._add(rank.calls(step), rank.source_lines)
            rank.close_tensors()
        self._write(tensors)

    def _add(self, calls: list[Call], sources: Mapping[str, Mapping[int, str]]) -> None:
        for one in self._made.of(calls):
            if not self._passes.wants(one.name):
                continue
            self._data[one.name] = one.body
            self.records += 1
            if ".forward" in one.name:
                self._stacks.setdefault(tuple(stack_lines(one.call, sources)), []).append(one.name)
        self._parents |= self._made.parents(calls)

    def _write(self, tensors: Path) -> None:
        choice = self._choice
        dump = {
            "task": choice.task, "level": choice.level, "framework": "pytorch",
            "dump_data_dir": str(tensors) if choice.has_files else None, "data": self._data,
        }  # fmt: skip
        stacks = {
            str(number): [names, list(lines)]
            for number, (lines, names) in enumerate(self._stacks.items())
        }
        for name, content in (("stack", stacks), ("construct", self._parents), ("dump", dump)):
            with replacing(self.folder / f"{name}.json") as aside:
                aside.write_text(json.dumps(content, indent=1))

    def _leaf(self, name: str, record: TensorRecord) -> dict[str, Any] | None:
        leaf = {
            "type": "torch.Tensor", "dtype": f"torch.{record.dtype}", "shape": list(record.shape),
        } | _numbers(record)  # fmt: skip
        if not self._choice.needs_elements:
            return leaf
        load = record.content.loader
        if load is None:
            return leaf
        elements = load.undecoded(record.dtype)  # type: ignore[attr-defined]
        if self._choice.checksums:
            leaf["md5"] = f"{zlib.crc32(elements.tobytes()):08x}"
        if self._choice.has_files and self._choice.chosen.wants_file(name):
            leaf["data_name"] = f"{name}.pt"
            save_tensor(self.folder / TENSORS / f"{name}.pt", elements, record.dtype, record.shape)
        return leaf


def _numbers(record: TensorRecord) -> dict[str, float | None]:
    """Largest, smallest, mean and norm as torch takes them, of all elements.

    Where some are infinite, which way is not known of a recording, so that both bounds are said to be.
    """
    found = record.statistics
    if found is None or not math.prod(record.shape):
        return dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    high, low, mean, norm = found.maximum, found.minimum, found.mean, found.norm
    if found.nan_count:
        high = low = mean = norm = math.nan
    elif found.inf_count:
        high, low, mean, norm = math.inf, -math.inf, math.nan, math.inf
    whole = not is_floating(record.dtype)
    return {
        "Max": high,
        "Min": low,
        "Mean": None if whole else mean,
        "Norm": None if whole else norm,
    }
