"""The whole state of a training at the start of each window: `states/` in a rank's directory.

Of each window there is `step-1000.json`, which lists every tensor by its name, and `step-1000.safetensors` with the
contents that no window before has. The JSON text ends with a digest of itself, holds length and digest of every
safetensors file that it names, and is written last: a state without it was not kept whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core.errors import PUT_BACK, CorruptError
from lockstep.core.records import Array
from lockstep.core.replacement import replacing
from lockstep.store.integrity import DigestedFile, Files, check_manifest, with_digest
from lockstep.store.limits import read_manifest, values_of
from lockstep.store.permissions import make_private_directory, open_private, write_private
from lockstep.store.tensor_files import Shard
from lockstep.store.tensors import can_store, write_named

STATES = "states"
_LISTED = re.compile(r"step-(\d{1,18})\.json")
_FILE = re.compile(r"step-\d{1,18}\.safetensors")


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a state: its dtype as "bfloat16", its shape, and the place of its content."""

    dtype: str
    shape: tuple[int, ...]
    file: str
    entry: str


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """A tensor to be kept: `read` gives its elements undecoded, shape (count,), and `digest` is that of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    read: Callable[[], Array]


def can_keep(dtype: str) -> bool:
    """Whether tensors of this dtype can be kept."""
    return can_store(dtype)


class StateWriter:
    """Writes states into a rank's directory, each content once.

    rank_directory: The rank's directory.
    """

    def __init__(self, rank_directory: Path) -> None:
        self._directory = rank_directory / STATES
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self._marks: dict[str, str] = {}

    def write(
        self, step: int, tensors: Mapping[str, GivenTensor], values: Mapping[str, Any]
    ) -> str:
        """Write the state at the start of a step, and return its digest.

        step: The step that begins.
        tensors: Tensors by name.
        values: Other parts of the state, as JSON takes them.

        Raises OSError if the disk does not take it; nothing of this state is left then.
        """
        make_private_directory(self._directory, exist_ok=True)
        name = f"step-{step}.safetensors"
        # A step that was set aside begins once more, and its file is written anew.
        known = {key: place for key, place in self._known.items() if place[0] != name}
        new: dict[str, GivenTensor] = {}
        listed = {}
        for called, one in tensors.items():
            key = one.dtype, one.digest
            if key not in known:
                known[key] = name, called
                new[called] = one
            file, entry = known[key]
            listed[called] = {
                "dtype": one.dtype,
                "shape": list(one.shape),
                "file": file,
                "entry": entry,
            }
        marks = dict(self._marks)
        if new:
            marks[name] = self._write_contents(name, new)
        used = {one["file"] for one in listed.values()}
        text = json.dumps(
            {
                "step": step,
                "tensors": listed,
                "values": dict(values),
                "files": {file: marks[file] for file in sorted(map(str, used))},
            },
            indent=1,
        )
        whole = with_digest(text)
        with replacing(self._directory / f"step-{step}.json") as aside:
            write_private(aside, whole)
        self._known, self._marks = known, marks
        return str(json.loads(whole)["digest"])

    def _write_contents(self, name: str, new: Mapping[str, GivenTensor]) -> str:
        with replacing(self._directory / name) as aside, open_private(aside, "wb") as file:
            digested = DigestedFile(file)
            write_named(
                digested, [(called, one.dtype, one.shape, one.read) for called, one in new.items()]
            )
            file.flush()
            return digested.mark


@dataclass(frozen=True)
class WindowState:
    """The state of a training at the start of a window.

    step: The step that began.
    digest: Tells it from every other state.
    tensors: Where each tensor lies, by its name.
    values: Its other parts.
    """

    step: int
    digest: str
    tensors: Mapping[str, StateTensor]
    values: Mapping[str, Any]
    _directory: Path
    _files: Files
    _shards: dict[str, Shard] = field(default_factory=dict)

    def elements(self, name: str) -> Array:
        """Elements of a tensor bit by bit, shape (count,): bfloat16 as uint16, float8 as uint8.

        Raises CorruptError if its file is damaged, or holds something else than is listed.
        """
        listed = self.tensors[name]
        shard = self._shards.get(listed.file)
        if shard is None:
            path = self._directory / listed.file
            self._files.check(path)
            shard = self._shards[listed.file] = Shard(path)
        found = {entry: (dtype, shape) for entry, dtype, shape in shard.listed()}
        dtype, shape = found.get(listed.entry, ("nothing", ()))
        if dtype != listed.dtype or _count(shape) != _count(listed.shape):
            what = f"{listed.entry} is {dtype} {shape}, and {listed.dtype} {listed.shape} was kept"
            raise CorruptError(shard.path, what)
        return shard.undecoded(listed.entry)

    def check(self) -> None:
        """Compare its files with their digests. Raises CorruptError if one was changed."""
        for name in {one.file for one in self.tensors.values()}:
            self._files.check(self._directory / name)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def state_steps(rank_directory: Path) -> list[int]:
    """Return the steps of which a rank's directory holds the state."""
    directory = rank_directory / STATES
    if not directory.is_dir():
        return []
    found = (_LISTED.fullmatch(entry.name) for entry in directory.iterdir())
    return sorted(int(one[1]) for one in found if one is not None)


def read_state(rank_directory: Path, step: int) -> WindowState:
    """Return the state at the start of a step. Raises CorruptError if it is not there, was cut or was changed."""
    directory = rank_directory / STATES
    path = directory / f"step-{step}.json"
    if not path.exists():
        raise CorruptError(path, "is not there", advice=PUT_BACK)
    data = read_manifest(path)
    check_manifest(path, data)
    try:
        value = values_of(data)
        if not isinstance(value, dict) or "digest" not in value:
            raise ValueError("its end is missing")
        tensors = {str(name): _listed(one) for name, one in value["tensors"].items()}
        marks = {str(name): str(mark) for name, mark in value["files"].items()}
        values = dict(value["values"])
        if value["step"] != step or {one.file for one in tensors.values()} - set(marks):
            raise ValueError("it lists a file that it does not describe, or is of a different step")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(path, f"is not the list of a state ({error})") from error
    return WindowState(
        step, str(value["digest"]), tensors, values, directory, Files(directory, marks)
    )


def _listed(value: Any) -> StateTensor:
    match value:
        case {
            "dtype": str(dtype),
            "shape": [*shape],
            "file": str(file),
            "entry": str(entry),
        } if _FILE.fullmatch(file) and all(type(one) is int and one >= 0 for one in shape):
            return StateTensor(dtype, tuple(shape), file, entry)
    raise ValueError(f"a tensor is listed as {value!r:.80}")
