"""A recording's tensors in files that other tools read, by names that `tensor_folder` reads again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lockstep.errors import OutputExistsError
from lockstep.files import replacing
from lockstep.recordings import Call, NamedTensor, Recording, whole_tensor, writer_for

_UNFIT = re.compile(r"[/\\%\x00-\x1f\x7f]|^\.{1,2}$")
_MOST_CHARACTERS = 180


@dataclass
class Written:
    """How many tensors were written, and which were not saved whole."""

    tensors: int = 0
    missing: list[str] = field(default_factory=list)


def write_files(recording: Recording, folder: Path, form: str) -> Written:
    """Write every whole tensor of a recording, a file for each in `.npy`, else a file for each step of a rank.

    Names are `RANK/stepN/MOMENT/MODULE/OPERATOR#CALL/ROLE.NAME`, MOMENT counting within a rank.

    folder: Made, where it is not there and empty.
    form: `npy`, `npz`, `safetensors`, `h5` or `txt`.

    Raises OutputExistsError if the folder is taken, or the disk does not take it. Raises UsageError if what writes the
    form is not installed.
    """
    write = None if form == "npy" else writer_for(folder / f"rank0-step0.{form}")
    written = Written()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise OutputExistsError(f"{folder}: is not empty; give another directory")
        for rank in recording.ranks.values():
            for step in rank.steps:
                tensors = list(_whole(rank.calls(step), written))
                written.tensors += len(tensors)
                if write is None:
                    _write_arrays(folder, tensors)
                elif tensors:
                    with replacing(folder / f"{rank.name}-step{step}.{form}") as aside:
                        write(aside, tensors)
                recording.close_tensors()
    except OSError as error:
        raise OutputExistsError(
            f"{folder}: cannot be written ({error.strerror or error}); give another place"
        ) from error
    return written


def _whole(calls: Iterable[Call], written: Written) -> Iterator[NamedTensor]:
    for call in calls:
        site = f"{_fit(call.site.module) or '(model)'}/{_fit(call.site.op)}#{call.site.call}"
        for one in call.records:
            name = f"{call.rank}/step{call.step}/{one.sequence:08}/{site}/{one.role.value}.{_fit(one.name)}"
            tensor = whole_tensor(name, one)
            if tensor is None:
                written.missing.append(name)
            else:
                yield tensor


def _write_arrays(folder: Path, tensors: list[NamedTensor]) -> None:
    for tensor in tensors:
        path = folder / f"{tensor.name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside, aside.open("xb") as file:
            np.save(file, tensor.widened(), allow_pickle=False)


def _fit(part: str) -> str:
    """A part of a name as a file's may be: odd characters as %XX; of one too long its ends and a digest."""
    plain = _UNFIT.sub(lambda found: "".join(f"%{ord(one):02X}" for one in found[0]), part)
    if len(plain) <= _MOST_CHARACTERS:
        return plain
    digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
    return f"{plain[: _MOST_CHARACTERS // 2]}~{digest}~{plain[-_MOST_CHARACTERS // 3 :]}"
