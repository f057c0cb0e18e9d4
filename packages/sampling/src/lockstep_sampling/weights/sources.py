"""Open what stands for one side: notes, a checkpoint, or a recording; several versions where it has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError, UsageError
from lockstep.files import url_of
from lockstep.recordings import (
    MANIFEST,
    CallKind,
    Content,
    RankRecording,
    ReadLater,
    Recording,
    Role,
    Shard,
    Standing,
    StateRecord,
    StoredTensor,
    open_recording,
)
from lockstep_sampling.weights.fingerprint import Fingerprint, fingerprint_of
from lockstep_sampling.weights.logical_names import logical_names
from lockstep_sampling.weights.matching import Weight
from lockstep_sampling.weights.note_files import FOLDER, Note, names_of, notes_in, read_note

_TORCH_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt"})
_NOTE = ".weights.npz"
_TAKEN = "give notes of lockstep.weights, a .safetensors or .pt checkpoint (a file or a folder), or a recording"


@dataclass(frozen=True)
class Version:
    """The weights of one side at one moment.

    step: Its number; None where nothing tells it.
    load: Reads the weights of each rank.
    """

    step: int | None
    load: Callable[[], Sequence[Sequence[Fingerprint]]]

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """The weights, those of several ranks together."""
        return tuple(_of_ranks(self.load()))


@dataclass(frozen=True, slots=True)
class Side:
    """One side.

    path: As it was given.
    versions: In order of their steps.
    """

    path: Path
    versions: tuple[Version, ...]

    def at(self, step: int | None) -> Version | None:
        """The version of a step."""
        return next((one for one in self.versions if one.step == step), None)


def open_side(path: Path, name: str = "", form: str = "") -> Side:
    """Open one side; `name` chooses among notes of several names, `form` says which other tool wrote it.

    Raises UsageError if it is nothing that has weights. Raises RecordingError if a file is damaged.
    """
    if form or url_of(path):
        recording = open_recording(path, form=form)
        return Side(recording.path, tuple(_recorded(recording)))
    if path.is_dir():
        return Side(path, tuple(_versions_in_folder(path, name)))
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; {_TAKEN}")
    if path.name.endswith(_NOTE):
        notes = [note for note in notes_in(path.parent) if note.path.name == path.name]
        return Side(path, (_version_of(notes),))
    if path.suffix == ".safetensors" or path.suffix in _TORCH_SUFFIXES:
        return Side(path, (Version(None, lambda: [_in_file(path)]),))
    raise UsageError(f"{path}: its suffix tells no form of weights; {_TAKEN}")


def _versions_in_folder(path: Path, name: str) -> Iterator[Version]:
    notes = notes_in(path) or (notes_in(path / FOLDER) if (path / FOLDER).is_dir() else [])
    if notes:
        yield from _versions_of(_chosen(path, notes, name))
    elif (path / MANIFEST).exists():
        yield from _recorded(open_recording(path))
    else:
        yield Version(None, partial(_in_folder, path))


# -- notes


def _chosen(path: Path, notes: Sequence[Note], name: str) -> list[Note]:
    names = names_of(notes)
    if not name and len(names) > 1:
        raise UsageError(f"{path}: holds notes of {', '.join(names)}; choose one with --note")
    found = [note for note in notes if not name or note.name == name]
    if not found:
        raise UsageError(f"{path}: holds no note of {name}, but of {', '.join(names)}")
    return found


def _versions_of(notes: Iterable[Note]) -> Iterator[Version]:
    by_step: dict[int, list[Note]] = {}
    for note in notes:
        by_step.setdefault(note.step, []).append(note)
    for _, those in sorted(by_step.items()):
        yield _version_of(those)


def _version_of(notes: Sequence[Note]) -> Version:
    return Version(notes[0].step, lambda: [read_note(note.path) for note in notes])


def _of_ranks(ranks: Sequence[Sequence[Fingerprint]]) -> Iterator[Weight]:
    """Each weight once; in parts where ranks do not hold the same."""
    by_name: dict[str, list[Fingerprint]] = {}
    for tensors in ranks:
        for tensor in tensors:
            by_name.setdefault(tensor.name, []).append(tensor)
    for name, parts in by_name.items():
        first = parts[0]
        is_same = all(_is_same(first, part) for part in parts)
        yield Weight(name, (first,) if is_same else tuple(parts))


def _is_same(one: Fingerprint, other: Fingerprint) -> bool:
    known = one.digests.get(one.dtype)
    return (one.dtype, one.shape) == (other.dtype, other.shape) and (
        known is not None and known == other.digests.get(other.dtype)
    )


# -- checkpoints


def _in_file(path: Path) -> list[Fingerprint]:
    if path.suffix != ".safetensors":
        from lockstep_sampling.weights.torch_checkpoints import fingerprints_in  # loads torch

        return fingerprints_in(path)
    return _read([path], None)


def _in_folder(path: Path) -> list[list[Fingerprint]]:
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if len(indexes) == 1:
        files = _weight_map(indexes[0])
        return [_read([path / name for name in dict.fromkeys(files.values())], files)]
    shards = sorted(path.glob("*.safetensors"))
    if shards:
        return [_read(shards, None)]
    others = _torch_files(path)
    if not others:
        raise UsageError(f"{path}: holds no weights; {_TAKEN}")
    if not all(one.exists() for one in others):
        absent = next(one for one in others if not one.exists())
        raise CorruptError(absent, "is in the index, but not there", advice="copy it too")
    return [[tensor for one in others for tensor in _in_file(one)]]


def _torch_files(path: Path) -> list[Path]:
    """Those of an index, or the only one: of several it is not known which is an optimizer's."""
    indexes = sorted(path.glob("*.index.json"))
    if len(indexes) == 1:
        return [path / name for name in dict.fromkeys(_weight_map(indexes[0]).values())]
    found = sorted(one for one in path.iterdir() if one.suffix in _TORCH_SUFFIXES)
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise UsageError(f"{path}: holds {names}, and no index; give the file of the weights")
    return found


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        files: Any = json.loads(index.read_text("utf-8"))["weight_map"]
        if not all(Path(name).name == name for name in files.values()):
            raise ValueError("it names a file outside of its folder")
        return {str(name): str(file) for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            index, f"is no index of a checkpoint ({error})", advice="save it again"
        ) from error


def _read(paths: Sequence[Path], files: Mapping[str, str] | None) -> list[Fingerprint]:
    """The tensors of safetensors files; those that an index names, where there is one."""
    found: dict[str, tuple[str, tuple[int, ...], Shard]] = {}
    for path in paths:
        shard = _opened(path)
        for name, dtype, shape in shard.listed():
            if files is not None and files.get(name) != path.name:
                if name not in files:
                    what = f"{name} is in the file, but not in the index"
                    raise CorruptError(path, what, advice="save it again")
                continue
            if name in found:
                raise UsageError(
                    f"{path}: {name} is also in {found[name][2].path}; give one checkpoint"
                )
            found[name] = dtype, shape, shard
    absent = [name for name in files or () if name not in found]
    if absent:
        what = f"{absent[0]} is in the index, but in no file"
        raise CorruptError(paths[0].parent, what, advice="save it again")
    names = logical_names(found)
    return [
        fingerprint_of(names[name], dtype, shape, shard.undecoded(name))
        for name, (dtype, shape, shard) in found.items()
    ]


def _opened(path: Path) -> Shard:
    if not path.exists():
        raise CorruptError(path, "is in the index, but not there", advice="copy it too")
    try:
        return Shard(path)
    except CorruptError as error:
        raise CorruptError(error.where, error.what, advice="save it again") from error


# -- recordings


def _recorded(recording: Recording) -> Iterator[Version]:
    """What parameters were before the first step, and after recorded ones."""
    ranks = list(recording.ranks.values())
    versions: dict[int, Callable[[], Sequence[Sequence[Fingerprint]]]] = {}
    first = min(ranks[0].steps, default=0)
    for state in ranks[0].states:
        if _is_weight(state):
            versions.setdefault(state.step, partial(_after, ranks, state.step))
    versions[first] = lambda: [_initial(rank, first) for rank in ranks]
    for step, load in sorted(versions.items()):
        yield Version(step, load)


def _is_weight(state: StateRecord) -> bool:
    """Whether it is a parameter or buffer that took part in a recorded step."""
    takes_part = state.standing in (Standing.MET, Standing.TRAINED)
    return takes_part and state.role in (Role.PARAM, Role.BUFFER)


def _initial(rank: RankRecording, step: int) -> list[Fingerprint]:
    found: dict[str, Content] = {}
    for call in rank.calls(step, kind=CallKind.INIT):
        for record in call.records:
            if record.role in (Role.PARAM, Role.BUFFER):
                found.setdefault(record.name, record.content)
    return _of_contents(found)


def _after(ranks: Sequence[RankRecording], step: int) -> list[list[Fingerprint]]:
    return [_of_contents(_contents_after(rank, step)) for rank in ranks]


def _contents_after(rank: RankRecording, step: int) -> dict[str, Content]:
    found: dict[str, Content] = {}
    for state in rank.states:
        if state.step == step and _is_weight(state):
            found[state.name] = state.content  # the last moment of a step
    return found


def _of_contents(contents: Mapping[str, Content]) -> list[Fingerprint]:
    names = logical_names(contents)
    return [_of_content(names[name], content) for name, content in contents.items()]


def _of_content(name: str, content: Content) -> Fingerprint:
    if isinstance(content.loader, (StoredTensor, ReadLater)):
        elements = content.loader.undecoded(content.dtype)
        return fingerprint_of(name, content.dtype, content.shape, elements)
    if content.digest is None or ":" in content.digest:
        why = content.note or "the recording holds no digest of it"
        return Fingerprint(name, content.dtype, content.shape, unread=why)
    statistics = content.statistics
    bad = 0 if statistics is None else statistics.nan_count + statistics.inf_count
    return Fingerprint(
        name,
        content.dtype,
        content.shape,
        {content.dtype: content.digest},
        sketch=content.sketch,
        not_finite=bad,
    )


__all__ = ["Side", "Version", "open_side"]
