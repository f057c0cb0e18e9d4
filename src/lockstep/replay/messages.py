"""What a comparison and the process that re-runs for it say to each other.

Questions are pickled: they come from the comparison, which the process may trust. Answers are JSON, read without
trusting them: what re-runs calls of a stranger's recording may say anything. Tensors are named by where they are
stored, and read by the process itself.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, TypeVar

from lockstep.core.errors import CorruptError, RecordingError
from lockstep.core.finding import Explanation, Instead, Kind
from lockstep.core.records import Array, Content
from lockstep.core.text import message, printable
from lockstep.judge.protocol import Judgement, Rounding
from lockstep.replay.budget import TooLarge
from lockstep.replay.chained import Chained, chained_of
from lockstep.replay.equal_forms.substitute import Substitute, substitute_of
from lockstep.replay.held_results import Result, result_of
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.smaller.shrunk import Shrunk, shrunk_of
from lockstep.replay.time_alone import Timed, timed_of
from lockstep.store.integrity import Files
from lockstep.store.stored_contents import StoredSketch
from lockstep.store.stored_tensor import StoredTensor
from lockstep.store.tensors import TensorFiles

Said = TypeVar("Said")

_LENGTH_BYTES = 8
_MOST_CHARACTERS = 4096
"""Of the words of an answer."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A comparison begins: what was kept for an earlier one is let go of.

    `memory_bytes` is what the whole comparison may take.
    """

    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Known:
    """Files of one rank: what they are to be held against when they are read."""

    directory: Path
    marks: dict[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """A judgement that is asked for: a method of `lockstep.replay.verdict.Verdicts` and what it is called with."""

    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor that is no part of a recording on disk."""

    array: Array

    def __call__(self) -> Array:
        """The tensor."""
        return self.array


class _Packer(pickle.Pickler):
    """Names files instead of holding them open; remembers which."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.files: dict[Path, TensorFiles] = {}

    def reducer_override(self, item: Any) -> Any:
        """How a value is put together again."""
        if isinstance(item, TensorFiles):
            self.files[item.directory] = item
            return _files_of, (item.directory,)
        if isinstance(item, StoredSketch):
            return _nothing, ()
        if isinstance(item, Content) and not isinstance(item.loader, (StoredTensor, type(None))):
            values = {field.name: getattr(item, field.name) for field in fields(item)}
            return Content, tuple((values | {"loader": Given(item.load())}).values())
        return NotImplemented


def packed(value: object) -> tuple[bytes, dict[Path, TensorFiles]]:
    """A message as bytes, and the files that it names."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(value)
    return file.getvalue(), packer.files


def send(stream: IO[bytes], data: bytes) -> None:
    """Write a message behind its length."""
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    stream.write(data)
    stream.flush()


def received(stream: IO[bytes]) -> Any:
    """The next message; None where there will be none."""
    length = stream.read(_LENGTH_BYTES)
    return pickle.loads(stream.read(int.from_bytes(length, "big"))) if length else None


_open: dict[Path, TensorFiles] = {}


def know(known: Known | None) -> None:
    """Open the files of a rank; None lets go of all."""
    if known is None:
        _open.clear()
    else:
        _open[known.directory] = TensorFiles(known.directory, Files(known.directory, known.marks))


def _files_of(directory: Path) -> TensorFiles:
    return _open[directory]


def _nothing() -> None:
    return None


# --- answers ---------------------------------------------------------------------------------------------------------


def answer(
    ask: Callable[
        [],
        Judgement | Sequence[Result] | Explanation | Shrunk | Chained | Substitute | Timed | None,
    ],
) -> dict[str, Any]:
    """What is said, or why nothing can be, as JSON values."""
    try:
        found = ask()
        if isinstance(found, Judgement):
            return {"judgement": asdict(found)}
        if found is None or isinstance(found, Explanation):
            return {"explanation": None if found is None else asdict(found)}
        if isinstance(found, Shrunk):
            return {"shrunk": asdict(found)}
        if isinstance(found, Timed):
            return {"timed": asdict(found)}
        if isinstance(found, Substitute):
            return {"substitute": asdict(found)}
        if isinstance(found, Chained):
            return {"chained": asdict(found)}
        return {"results": [asdict(one) for one in found]}
    except TooLarge as error:
        return {"too_large": error.needed_bytes}
    except RecordingError as error:
        return {"damaged": [error.where, error.what, error.advice]}
    except CannotReplay as error:
        return {"refused": str(error)}
    except Exception as error:  # a recording may be anybody's; torch reports memory it cannot get as a RuntimeError
        return {"refused": f"{type(error).__name__}: {error}"}


def judgement_in(line: bytes) -> Judgement:
    """The judgement that an answer gives.

    Raises
    ------
    CannotReplay
        If the answer says so, or is none.
    CorruptError
        If it says that a file is damaged.
    """
    return _said(line, "judgement", _judgement)


def results_in(line: bytes) -> list[Result]:
    """The results of a re-run that an answer gives.

    Raises
    ------
    CannotReplay, CorruptError
        As `judgement_in`.
    """
    return _said(line, "results", lambda said: [result_of(one) for one in said])


def explanation_in(line: bytes) -> Explanation | None:
    """The explanation that an answer gives; None where nothing explains.

    Raises
    ------
    CannotReplay, CorruptError
        As `judgement_in`.
    """
    return _said(line, "explanation", _explanation)


def shrunk_in(line: bytes) -> Shrunk:
    """The smaller inputs that an answer gives.

    Raises
    ------
    CannotReplay, CorruptError
        As `judgement_in`.
    """
    return _said(line, "shrunk", shrunk_of)


def chained_in(line: bytes) -> Chained:
    """A module run again that an answer gives.

    Raises
    ------
    CannotReplay, CorruptError
        As `judgement_in`.
    """
    return _said(line, "chained", chained_of)


def substitute_in(line: bytes) -> Substitute:
    """The form of an operator that an answer gives.

    Raises
    ------
    CannotReplay, CorruptError
        As `judgement_in`.
    """
    return _said(line, "substitute", substitute_of)


def timed_in(line: bytes) -> Timed:
    """The times that an answer gives.

    Raises
    ------
    CannotReplay, CorruptError
        As `judgement_in`.
    """
    return _said(line, "timed", timed_of)


def _said(line: bytes, wanted: str, read: Callable[[Any], Said]) -> Said:
    try:
        value = json.loads(line)
        (kind, said), *_ = value.items()
        if kind == wanted:
            return read(said)
        if kind == "too_large":
            raise TooLarge(int(said))
        if kind == "damaged":
            where, what, advice = (message(str(one)) for one in said)
            raise CorruptError(where, what, advice=advice)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CannotReplay("what runs it again gave no answer") from error
    raise CannotReplay(message(str(said)))


def _judgement(said: dict[str, Any]) -> Judgement:
    """A judgement whose every value is of its type.

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
    """
    values = dict(said)
    if values.get("kind") is not None:
        values["kind"] = Kind(values["kind"])
    for name in ("tolerance", "floor"):
        values[name] = float(values[name])
    for name in ("beyond_floor", "unexplained", "open", "local"):
        values[name] = bool(values[name])
    if values["rounding"] is not None:
        values["rounding"] = _rounding(**values["rounding"])
    for name in ("words", "judged_by"):
        values[name] = printable(str(values[name]))[:_MOST_CHARACTERS]
    return Judgement(**values)


def _explanation(said: dict[str, Any] | None) -> Explanation | None:
    """An explanation whose every value is of its type.

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
    """
    if said is None:
        return None
    share = float(said["share"])
    if not 0.0 <= share <= 1.0:
        raise ValueError("a share lies between 0 and 1")
    return Explanation(
        Instead(said["kind"]), printable(str(said["words"]))[:_MOST_CHARACTERS], share
    )


def _rounding(rounded: str, formats: Sequence[str]) -> Rounding:
    names = tuple(printable(str(name))[:_MOST_CHARACTERS] for name in formats)
    return Rounding("inputs" if rounded == "inputs" else "output", names)
