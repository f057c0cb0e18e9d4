"""The messages between a training and the daemon: JSON after its length, checked field by field.

Samples never pass here: messages name places in files that both sides map.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from lockstep.errors import LockstepError

MOST_BYTES = 1 << 22
"""Of one message."""

_LENGTH_BYTES = 4
_MOST_NUMBER = 1 << 62


class MessageError(LockstepError):
    """A message that breaks this protocol; its sender is cut off."""


@dataclass(frozen=True)
class Message:
    """Anything that is sent; each class is one kind of message, by its name."""

    kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        Message.kinds[cls.__name__] = cls


@dataclass(frozen=True)
class _OfSession(Message):
    """Of a session, by its name, and of nothing else."""

    session: str


@dataclass(frozen=True)
class Hello(Message):
    """The first message of a connection: who connects."""

    pid: int


class Welcome(Message):
    """Whoever said Hello is answered from now on."""


@dataclass(frozen=True)
class Attach(Message):
    """Use a session, made where there is none. `rows` is how many samples there are, 0 where that is not known.

    `training` tells trainings apart; a session that is not `lasting` goes with the last process that uses it.
    A sample is loaded again after `checked_within` hits of a training at the latest; 0 where there is no such bound.
    """

    session: str
    checksum: str
    description: dict[str, str]
    variant: str = ""
    rows: int = 0
    training: str = ""
    lasting: int = 1
    checked_within: int = 0


@dataclass(frozen=True)
class Attached(Message):
    """The table of a session's variant; its descriptor comes with it (SCM_RIGHTS, unix(7))."""

    session: str
    table: str
    rows: int


@dataclass(frozen=True)
class Grow(Message):
    """The table has to hold this many rows; answered by `Attached`."""

    session: str
    variant: str
    rows: int


@dataclass(frozen=True)
class Refused(Message):
    """No, and why; `description` is that of the pipeline that is there; `later` says that it may be asked again."""

    why: str
    description: dict[str, str] = field(default_factory=dict)
    later: int = 0


@dataclass(frozen=True)
class Place(Message):
    """Room for samples: pairs of a row and a length in bytes; and up to so many bytes for others to come."""

    session: str
    variant: str
    wanted: list[list[int]]
    ahead: int = 0


@dataclass(frozen=True)
class Placed(Message):
    """For each a slab and an offset, 0 and 0 where there is no room or another writes it; `say` is for the user.

    `ahead` is a slab, an offset and bytes, instead of what was given before; or nothing.
    """

    places: list[list[int]]
    say: str = ""
    ahead: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Written(Message):
    """Rows that lie where they were placed; others with offset and bytes in what was given ahead. Not answered."""

    session: str
    variant: str
    rows: list[int]
    ahead: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Confirm(Message):
    """Rows, each with its word, that were computed once more and came out the same. Not answered."""

    session: str
    variant: str
    rows: list[list[int]]


class Unused(_OfSession):
    """To what was given ahead nothing more is written. Not answered."""


@dataclass(frozen=True)
class Lease(Message):
    """Wants to map a slab."""

    slab: int


@dataclass(frozen=True)
class Leased(Message):
    """Its file, "" where it is gone, and whether all that it will ever hold is written; with its descriptor."""

    tier: str
    file: str
    size: int
    sealed: int = 0


@dataclass(frozen=True)
class Released(Message):
    """Slabs that are not mapped any more; what was read since the last time. Answered by `Gone`."""

    slabs: list[int]
    session: str = ""
    hits: int = 0


@dataclass(frozen=True)
class Gone(Message):
    """Slabs that this process maps and that nobody needs any more."""

    slabs: list[int]


@dataclass(frozen=True)
class Close(Message):
    """No sample of a session may be taken from the cache, and why. Answered by `Told`.

    `wrong` says that a sample was found to be wrong that had been given out.
    """

    session: str
    why: str
    wrong: int = 0


@dataclass(frozen=True)
class Tell(Message):
    """Something that a user is to hear once of a session. Answered by `Told`."""

    session: str
    what: str


@dataclass(frozen=True)
class Told(Message):
    """Whether this process is the first, which says it."""

    first: int


class Leave(_OfSession):
    """This process uses the session no more. Not answered."""


class MakeSession(_OfSession):
    """A session without a pipeline, which the first training gives it. Answered by `Made`."""


class Made(_OfSession):
    """The name of a session."""


class Destroy(_OfSession):
    """Drop a session and its samples. Answered by `Made`."""


class Stat(Message):
    """How things stand. Answered by `Stats`."""


@dataclass(frozen=True)
class Stats(Message):
    """The daemon's numbers and those of each session, as JSON."""

    text: str


class Stop(Message):
    """End the daemon. Answered by `Made`."""


def encode(message: Message) -> bytes:
    """A message as it is sent. Raises MessageError if it is longer than `MOST_BYTES`."""
    fields = {"kind": type(message).__name__, **vars(message)}
    text = json.dumps(fields, separators=(",", ":")).encode()
    if len(text) > MOST_BYTES:
        raise MessageError(f"a message of {len(text)} bytes is longer than {MOST_BYTES}")
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


class Decoder:
    """Takes bytes as they come, and gives whole messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole by now. Raises MessageError if what came is none."""
        self._rest += data
        found = []
        while len(self._rest) >= _LENGTH_BYTES:
            end = int.from_bytes(self._rest[:_LENGTH_BYTES], "big") + _LENGTH_BYTES
            if end > MOST_BYTES + _LENGTH_BYTES:
                raise MessageError(f"a message of {end} bytes is longer than {MOST_BYTES}")
            if len(self._rest) < end:
                break
            found.append(_parsed(bytes(self._rest[_LENGTH_BYTES:end])))
            del self._rest[:end]
        return found


def _parsed(text: bytes) -> Message:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError("a message is not JSON") from error
    kind = Message.kinds.get(str(fields.pop("kind", ""))) if isinstance(fields, dict) else None
    if kind is None:
        raise MessageError("a message of no known kind")
    types = _TYPES[kind]
    needed = {one.name for one in dataclasses.fields(kind) if one.default is one.default_factory}
    if not needed <= fields.keys() <= types.keys():
        raise MessageError(f"{kind.__name__}: its fields are {', '.join(types)}")
    for name, value in fields.items():
        if not _fits(value, types[name]):
            raise MessageError(f"{kind.__name__}: its {name} is no {types[name]}")
    return kind(**fields)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(one, get_args(kind)[0]) for one in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
    if kind is int:
        return type(value) is int and 0 <= value < _MOST_NUMBER
    return isinstance(value, str)


_TYPES = {
    kind: {one.name: get_type_hints(kind)[one.name] for one in dataclasses.fields(kind)}
    for kind in Message.kinds.values()
}
