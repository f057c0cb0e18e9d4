"""Folders of `.npy`, a file a tensor: named as by a list of tfdbg's `pt` commands, or as by Ascend's converter.

The operator of a TensorFlow graph stands where a recording has a module: its name is the path, its type the class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lockstep.errors import CorruptError
from lockstep.recordings import LaterTensor, NotSeen, ReadCall, digested
from lockstep_interop_names.dumps.named_sites import Spot, calls_of, spot_of
from lockstep_interop_names.dumps.probe_leaves import npy_in
from lockstep_interop_names.dumps.readers.tensor_folder import what_is_missing

TFDBG = re.compile(r"(?P<module>.+)\.(?P<index>\d{1,4})\.(?P<time>\d{10,20})")
"""`{op_name}.{output}.{timestamp}`."""
ASCEND = re.compile(
    r"(?P<op>[^.]+)\.(?P<module>.+?)\.(?P<task>\d+)(?:\.\d+)?\.(?P<time>\d{10,20})\.(?P<role>input|output)\.(?P<index>\d{1,4})"
)
"""`{op_type}.{op_name}.{taskid}.{stream_id}.{timestamp}.{input|output}.{i}`."""


def recognises(path: Path) -> bool:
    """Whether files of a folder are named like that."""
    return any(_spot(file) for file in _files(path))


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from sorted(path.glob("*.npy"))


def _spot(file: Path) -> Spot | None:
    """Where a file's tensor belongs; None for a link too, which may lead anywhere."""
    if file.is_symlink() or not file.is_file():
        return None
    for pattern in (ASCEND, TFDBG):
        spot = spot_of(pattern, file.stem)
        if spot is not None:
            return replace(spot, module=re.sub(r"[/.]", "_", spot.module))
    return None


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls, and what names do not tell."""
    found: list[tuple[Spot, LaterTensor]] = []
    unread: list[str] = []
    kinds = {bool(ASCEND.fullmatch(file.stem)) for file in _files(path) if _spot(file)}
    if len(kinds) > 1:
        raise CorruptError(
            path,
            "holds files named by tfdbg and files named by Ascend's tools, of two runs",
            advice="give a folder that holds one",
        )
    for file in _files(path):
        spot = _spot(file)
        if spot is None:
            unread.append(file.name)
        else:
            found.append((spot, digested(npy_in(file))))
    yield from what_is_missing([spot for spot, _ in found], unread)
    yield from calls_of(found)
