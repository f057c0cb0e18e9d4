"""The messages between a comparison and the process that runs calls again for it.

Questions (`lockstep.replay.questions`) are pickled: they come from the comparison, which the process may
trust. Answers are JSON, read without trusting them: what re-runs calls of a stranger's recording may say anything.
Tensors are named by where they are stored, and read by the process itself.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from lockstep.core.errors import CorruptError, RecordingError
from lockstep.core.records import Array, Content
from lockstep.core.text import message
from lockstep.replay.calls.refusals import CannotReplay, TooLarge
from lockstep.replay.questions import Answer
from lockstep.store.integrity import Files
from lockstep.store.stored_contents import StoredSketch, StoredTensor
from lockstep.store.tensor_files import TensorFiles

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Begin:
    """A comparison begins: what was kept for an earlier one is let go of.

    `memory_bytes` is what the whole comparison may take.
    """

    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Known:
    """The digests of one rank's files, to check when they are read."""

    directory: Path
    marks: dict[str, str]


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
    """Write a message after its length."""
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


def answer(ask: Callable[[], object]) -> dict[str, Any]:
    """Return the answer, or the reason for none, as JSON values."""
    try:
        return {"answer": _plain(ask())}
    except TooLarge as error:
        return {"too_large": error.needed_bytes}
    except RecordingError as error:
        return {"damaged": [error.where, error.what, error.advice]}
    except CannotReplay as error:
        return {"refused": str(error)}
    except Exception as error:  # a recording may be anybody's; torch reports memory it cannot get as a RuntimeError
        return {"failed": f"{type(error).__name__}: {error}"}


def _plain(found: Any) -> Any:
    """A dataclass, a few of them, or None, as JSON values."""
    if isinstance(found, (list, tuple)):
        return [asdict(one) for one in found]
    return None if found is None else asdict(found)


def is_lasting(line: bytes) -> bool:
    """Return whether an answer stays the same whenever the question is asked: one that memory decides need not."""
    return line.startswith((b'{"answer"', b'{"refused"'))


def answer_in(line: bytes, read: Callable[[Any], Answer]) -> Answer:
    """Return the contents of an answer.

    line: As it came.
    read: Makes it of JSON values, as `Question.read` does.

    Raises CannotReplay if the answer says so, or is none. Raises CorruptError if it says that a file is damaged.
    """
    try:
        value = json.loads(line)
        (kind, said), *_ = value.items()
        if kind == "answer":
            return read(said)
        if kind == "too_large":
            raise TooLarge(int(said))
        if kind == "damaged":
            where, what, advice = (message(str(one)) for one in said)
            raise CorruptError(where, what, advice=advice)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CannotReplay("what runs it again gave no answer") from error
    raise CannotReplay(message(str(said)))
