"""Mutations of recordings, each drawn from its number alone: as damage, or sealed as their author would seal them.

Damage leaves the digests as they were, so that the reader has to notice it. A sealed mutation has its digests and
lengths taken anew, and meets the readers behind that check.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random

import hostile_json
import hostile_shards
import hostile_tables
import sealing


class Promise(Enum):
    """What the answer has to be, whatever else it may not be."""

    SAME = "the same answer"
    DETECTED = "the same answer, a clear error, or a partial answer that says so"
    NOTHING = "any verdict: the recording says something else now"


@dataclass(frozen=True)
class Mutation:
    """What was done to which recording, and what is to be asked of it."""

    number: int
    sample: str
    side: str
    arguments: tuple[str, ...]
    sealed: bool
    promise: Promise
    description: str

    def __str__(self) -> str:
        how = "sealed" if self.sealed else "damage"
        return f"{self.number} [{self.sample}/{self.side}, {how}, {' '.join(self.arguments)}] {self.description}"


VERBS: dict[tuple[str, ...], int] = {
    ("compare", "ref", "cand", "--json"): 10,
    ("compare", "ref", "cand", "--all"): 2,
    ("compare", "ref", "cand", "-o", "reports", "--force"): 1,
    ("show", "SIDE"): 2,
    ("show", "SIDE", "--json"): 1,
    ("show", "SIDE", "*", "--json"): 2,
}


def mutate(number: int, samples: Path, directory: Path) -> Mutation:
    """Put a mutated copy of a sample into a directory, as `ref` and `cand`.

    Parameters
    ----------
    number
        Decides everything.
    samples
        What `samples.record_samples` made.
    directory
        Where `ref` and `cand` are replaced.
    """
    draw = Random(number)
    sample = draw.choice(sorted(path.name for path in samples.iterdir()))
    restore(samples / sample, directory)
    side = draw.choice(("ref", "cand"))
    arguments = draw.choices(list(VERBS), list(VERBS.values()))[0]
    sealed = draw.random() < 0.75
    mutator = draw.choices(list(_MUTATORS), list(_MUTATORS.values()))[0]
    again = draw.randrange(1 << 32)
    both = (
        sealed and draw.random() < 0.3
    )  # what both have alike is compared, where other things are not
    for one in ("ref", "cand") if both else (side,):
        description, keeps_meaning = mutator(Random(again), directory / one)
        if sealed:
            sealing.seal(directory / one)
        else:
            sealing.keep_digests(directory / one, samples / sample / one)
    promise = Promise.NOTHING if sealed else Promise.DETECTED
    return Mutation(
        number,
        sample,
        "both" if both else side,
        tuple(side if one == "SIDE" else one for one in arguments),
        sealed,
        Promise.SAME if sealed and keeps_meaning else promise,
        description,
    )


def restore(sample: Path, directory: Path) -> None:
    """Put a sample as it is into a directory."""
    for side in ("ref", "cand"):
        shutil.rmtree(directory / side, ignore_errors=True)
        shutil.copytree(sample / side, directory / side)


# --- one format each ----------------------------------------------------------------------------

Done = tuple[str, bool]
"""What was done, and whether the recording still means the same."""


def _files(recording: Path, pattern: str = "*") -> list[Path]:
    return sorted(path for path in recording.rglob(pattern) if path.is_file())


def _bytes(draw: Random, recording: Path) -> Done:
    path = draw.choice(_files(recording))
    data = bytearray(path.read_bytes())
    done = []
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        at = int(len(data) * (draw.random() if draw.random() < 0.6 else 1 - draw.random() ** 8 / 9))
        count = draw.choice((1, 4, 64, 1024))
        kind = draw.choice(("flip", "cut off", "cut out", "insert", "zero", "repeat"))
        if kind == "flip" and data:
            data[min(at, len(data) - 1)] ^= 1 << draw.randrange(8)
        elif kind == "cut off":
            del data[at:]
        elif kind == "cut out":
            del data[at : at + count]
        elif kind == "insert":
            data[at:at] = draw.randbytes(count)
        elif kind == "zero":
            data[at : at + count] = bytes(len(data[at : at + count]))
        else:
            data[at:at] = data[at : at + count]
        done.append(f"{kind} at byte {at} ({count})")
    path.write_bytes(data)
    return f"{_name(path)}: {', '.join(done)}", False


def _manifest(draw: Random, recording: Path) -> Done:
    path = draw.choice(_files(recording, "manifest.json"))
    text, words, keeps = hostile_json.mutated(
        draw, sealing.body_of(path.read_bytes()).decode() + "\n}"
    )
    path.write_text(text.removesuffix("\n}"), errors="surrogatepass")
    return f"{_name(path)}: {words}", keeps


def _table(draw: Random, recording: Path) -> Done:
    path = draw.choice(_files(recording, "*.parquet"))
    words, keeps = hostile_tables.mutate(draw, path)
    return f"{_name(path)}: {words}", keeps


def _shard(draw: Random, recording: Path) -> Done:
    shards = _files(recording, "*.safetensors")
    if not shards:
        return _table(draw, recording)
    path = draw.choice(shards)
    words, keeps = hostile_shards.mutate(draw, path)
    return f"{_name(path)}: {words}", keeps


# --- the tree --------------------------------------------------------------------------------------


def _tree(draw: Random, recording: Path) -> Done:
    everything = sorted(recording.rglob("*"))
    path = draw.choice(everything)
    kind = draw.choice(list(_TREE))
    return f"{_name(path)}: {kind}{_TREE[kind](draw, path, recording)}", False


def _remove(draw: Random, path: Path, recording: Path) -> str:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return ""


def _replace(make: Callable[[Path], object]) -> Callable[[Random, Path, Path], str]:
    def replace(draw: Random, path: Path, recording: Path) -> str:
        _remove(draw, path, recording)
        make(path)
        return ""

    return replace


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def _rename(draw: Random, path: Path, recording: Path) -> str:
    names = ("rank7", "rank0-1", "rank00", "records-00007.parquet", "records-99999999999.parquet",
             "tensors-00000.safetensors", "x\x1b[31m\n", "modules.parquet", "manifest.json")  # fmt: skip
    target = path.with_name(draw.choice(names))
    if target == path:
        return " to its own name"
    if target.exists():
        return _swap_with(path, target)
    path.rename(target)
    return f" to {target.name!r}"


def _swap(draw: Random, path: Path, recording: Path) -> str:
    other = recording.with_name("cand" if recording.name == "ref" else "ref")
    same_kind = [one for one in sorted([*recording.rglob("*"), *other.rglob("*")])
                 if one.is_dir() == path.is_dir() and one != path
                 and one.name.split("-")[0].rstrip("01") == path.name.split("-")[0].rstrip("01")]  # fmt: skip
    return _swap_with(path, draw.choice(same_kind)) if same_kind else " with nothing"


def _swap_with(path: Path, target: Path) -> str:
    aside = path.with_name("aside")
    path.rename(aside)
    target.rename(path)
    aside.rename(target)
    return f" with {target.parent.parent.name}/{_name(target)}"


def _copy_aside(draw: Random, path: Path, recording: Path) -> str:
    rank = draw.choice(sorted(one for one in recording.iterdir() if one.is_dir()))
    name = draw.choice(("rank5", "rank0-1", "rank4294967296", "rank1-1"))
    shutil.copytree(rank, recording / name, dirs_exist_ok=True)
    return f" {rank.name} as {name}"


def _empty(draw: Random, path: Path, recording: Path) -> str:
    for one in path.iterdir() if path.is_dir() else ():
        _remove(draw, one, recording)
    if path.is_file():
        path.write_bytes(b"")
    return ""


_TREE: dict[str, Callable[[Random, Path, Path], str]] = {
    "removed": _remove,
    "made a link to itself": _replace(lambda path: path.symlink_to(path.name)),
    "made a link to zeros": _replace(lambda path: path.symlink_to("/dev/zero")),
    "made a link to a folder": _replace(lambda path: path.symlink_to("/etc")),
    "made a pipe": _replace(os.mkfifo),
    "made a folder": _replace(Path.mkdir),
    "made 10 GB of nothing": _replace(_sparse),
    "emptied": _empty,
    "renamed": _rename,
    "swapped": _swap,
    "another rank:": _copy_aside,
}

_MUTATORS: dict[Callable[[Random, Path], Done], int] = {
    _bytes: 3, _manifest: 3, _table: 9, _shard: 4, _tree: 2
}  # fmt: skip


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
