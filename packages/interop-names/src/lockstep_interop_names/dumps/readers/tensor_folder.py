"""Folders and files of tensors whose names tell their calls: of `lockstep extract`, checkpoints, dumps by a pattern.

Without a pattern these are names of `lockstep extract`, or, in `.safetensors` and `.pt`, the parameters of a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from lockstep.errors import CorruptError, LockstepError
from lockstep.recordings import (
    ARGUMENTS,
    CONTRADICTIONS,
    NESTING,
    ORDER,
    LaterTensor,
    NotSeen,
    ReadCall,
    Role,
    digested,
)
from lockstep.terminal import listed
from lockstep_interop_names.dumps.named_sites import Spot, calls_of, pattern_of, spot_of
from lockstep_interop_names.dumps.named_tensors import SUFFIXES, named_tensors

_DEPTH = 8
_CHECKPOINTS = (".safetensors", ".pt", ".pth")
_OWN = re.compile(
    rf"rank(?P<rank>\d+)/step(?P<step>\d+)/(?:(?P<time>\d+)/)?(?P<module>[^/]*)/(?P<op>.+)#(?P<call>\d+)/"
    rf"(?P<role>{'|'.join(sorted((role.value for role in Role), key=len, reverse=True))})\.(?P<name>.+?)(?<!~\d)"
)
"""Names of `lockstep extract`."""


def recognises(path: Path) -> bool:
    """Whether files at a path hold tensors by names of `lockstep extract`, or parameters by theirs."""
    for file in _files(path, _DEPTH):
        if file.suffix == ".npy":
            return _OWN.fullmatch(_place_of(path, file)) is not None
        checkpoint = file.suffix in _CHECKPOINTS and path in (file, file.parent)
        try:
            names = [name for name, _ in named_tensors(file)]
        except LockstepError:
            return checkpoint and path == file  # and reading it says what is wrong
        # A name that tells keys and values is one of a dump's files.
        return any(map(_OWN.fullmatch, names[:1])) or (
            checkpoint and "=" not in file.stem and _are_parameters(names)
        )
    return False


def _are_parameters(names: list[str]) -> bool:
    """Whether names are those of a model's parameters, rather than of what its layers returned.

    Every module of torch calls its parameters weight or bias, in parts of names at least (`in_proj_weight`). Results
    have no such names. A file without one is a checkpoint only if the user says so.
    """
    last = [name.rpartition(".")[2] for name in names]
    roles = any(part in _ACTIVATIONS for name in names for part in re.split(r"[./]", name))
    return not roles and any("weight" in one or "bias" in one for one in last)


_ACTIVATIONS = frozenset(
    {role.value for role in (Role.INPUT, Role.OUTPUT, Role.GRAD_INPUT, Role.GRAD_OUTPUT)}
)


def _files(path: Path, depth: int) -> Iterator[Path]:
    if path.is_symlink():
        return
    if path.is_file():
        if path.suffix.lower() in SUFFIXES:
            yield path
    elif path.is_dir() and depth:
        for one in sorted(path.iterdir(), key=_natural):
            yield from _files(one, depth - 1)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Names with numbers in them by these."""
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.split(r"(\d{1,18})", path.name)
    ]


def _place_of(path: Path, file: Path) -> str:
    where = file.with_suffix("")
    return where.name if path.is_file() else where.relative_to(path).as_posix()


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls of names that `extract` writes, or the parameters of a checkpoint, and what these lack."""
    yield from _read(path, _OWN, parameters=True)


def read_by(path: Path, names: str) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls of names that are built as a text says, and what these lack."""
    suffix = Path(names).suffix
    pattern = pattern_of(names.removesuffix(suffix) if suffix in SUFFIXES else names)
    yield from _read(path, pattern, parameters=False)


def _read(
    path: Path, pattern: re.Pattern[str], *, parameters: bool
) -> Iterator[ReadCall | NotSeen]:
    found: list[tuple[Spot, LaterTensor]] = []
    unread: list[str] = []
    for file in _files(path, _DEPTH):
        for key, tensor in named_tensors(file):
            name, place = key or _place_of(path, file), _place_of(path, file)
            spot = spot_of(pattern, name)
            if spot is None and key:  # a pattern may begin with the path of the file
                spot = spot_of(pattern, f"{place}/{key}") or spot_of(
                    pattern, f"{place}{file.suffix}/{key}"
                )
            if spot is not None and parameters and "%" in name:
                spot = replace(
                    spot, module=unquote(spot.module), op=unquote(spot.op), name=unquote(spot.name)
                )
            if spot is None and parameters and key and file.suffix in _CHECKPOINTS:
                spot = Spot(key.rpartition(".")[0], role=Role.PARAM, name=key)
            if spot is None:
                unread.append(name)
            else:
                found.append((spot, digested(tensor)))
    if not found:
        raise CorruptError(
            path,
            f"holds no tensor by a known name{f', but {unread[0]}' if unread else ''}",
            advice="say how names are built: --format 'tensors:{module}.{op}.{role}.{index}'",
        )
    yield from what_is_missing([spot for spot, _ in found], unread)
    yield from calls_of(found)


def what_is_missing(spots: list[Spot], unread: list[str]) -> Iterator[NotSeen]:
    """Return the facts that names alone do not tell."""
    yield (
        NotSeen("losses, batches and optimizers", "names tell none")
        if not any(one.role in (Role.LOSS, Role.STATE) for one in spots)
        else NotSeen("sources", "names tell none")
    )
    called = [one for one in spots if one.role not in (Role.PARAM, Role.BUFFER)]
    yield NotSeen(NESTING, "names tell paths alone")
    yield NotSeen(ARGUMENTS, "names tell none")
    if not called:
        yield NotSeen("every call", "names tell parameters alone")
    elif not any(one.role is Role.INPUT for one in called):
        yield NotSeen("what went into calls", "names tell results alone")
    if called and len({one.time for one in called}) < min(
        2, len({(one.module, one.op, one.call) for one in called})
    ):
        yield NotSeen(ORDER, "names tell no time")
    if unread:
        yield NotSeen(
            f"{len(unread)} tensors", f"their names are not known: {', '.join(unread[:3])}"
        )


def what_contradicts(said: list[str]) -> Iterator[NotSeen]:
    """Files that say in themselves that they are of something else than their names do, in a sentence each."""
    if said:
        yield NotSeen(CONTRADICTIONS, listed(said, 3), len(said))
