"""Take digests, statistics and sketches of modules and optimizers at a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.nn.parameter import is_lazy

from lockstep.capture.tensors.contents import Contents
from lockstep.core.site import Role
from lockstep.core.states import Moment, Standing
from lockstep.store import schema
from lockstep.store.encoding import Row
from lockstep.store.small_tensors import SmallContent, measured
from lockstep.store.tensors import RawTensor

_COLUMNS = list(schema.CONTENTS)
_KEPT = [_COLUMNS.index(name) for name in _COLUMNS if name not in ("content", "stored", "shard")]
_SKETCH, _DIGEST, _DTYPE, _NOTE = (
    list(schema.STATES).index(name) for name in ("sketch", "digest", "dtype", "note")
)


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that a module or an optimizer holds: path of the module, full name, what it is to both."""

    module: str
    name: str
    role: Role
    standing: Standing
    tensor: torch.Tensor


class StateTaker:
    """Takes states; nothing of a tensor is kept but its numbers.

    save: "stats", "sketch" or "tensors", as for contents; no tensor is kept whole.
    kept: Gives what is kept of a text.
    """

    def __init__(self, save: str, kept: Callable[[str], str]) -> None:
        self._sink = _Rows()
        save = "stats" if save == "stats" else "sketch"
        self._contents = Contents(self._sink, save, trust_versions=False)
        self._kept = kept
        self._taken: dict[tuple[Moment, Role, str], tuple[int, str, Standing, bool, int]] = {}

    def take(self, moment: Moment, step: int, held: Iterable[Held]) -> None:
        """Take what these hold now; of a name that was taken at this moment, the first counts."""
        numbers: dict[int, int] = {}
        held = list(held)  # all live, so that identities tell them apart
        for one in held:
            key = moment, one.role, one.name
            if key not in self._taken and not is_lazy(one.tensor):
                number = numbers.get(id(one.tensor))
                if number is None:
                    number = numbers[id(one.tensor)] = self._contents.of(one.tensor)
                trainable = one.tensor.requires_grad
                self._taken[key] = step, one.module, one.standing, trainable, number
        self._contents.forget_identities()

    def rows(self, *moments: Moment) -> list[Row]:
        """Rows of `schema.STATES` of some moments."""
        # A copy: the garbage collector may find a module that is gone while rows are made up, its end is taken then.
        known = self._taken.copy()
        contents, rows, sketched = self._sink.by_number(), [], set()
        for (moment, role, name), taken in known.items():
            step, module, standing, trainable, number = taken
            if moment not in moments:
                continue
            content = [contents[number][column] for column in _KEPT]
            row = [
                moment.value,
                step,
                module,
                name,
                role.value,
                standing.value,
                trainable,
                *content,
            ]
            row[_NOTE] = row[_NOTE] and self._kept(row[_NOTE])
            if (row[_DIGEST], row[_DTYPE]) in sketched:
                row[_SKETCH] = None
            sketched.add((row[_DIGEST], row[_DTYPE]))
            rows.append(tuple(row))
        return rows


class _Rows:
    """Gathers contents."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._small: list[SmallContent] = []

    def add_content(self, row: Row) -> None:
        """Take one row of `schema.CONTENTS`."""
        self._rows.append(row)

    def add_small_content(self, content: SmallContent) -> int:
        """Take a content that is still to be measured."""
        self._small.append(content)
        return 0

    def add_tensor(self, tensor: RawTensor) -> int:
        """Never called: nothing is kept whole."""
        raise NotImplementedError

    def by_number(self) -> dict[int, Row]:
        """Every content by its number."""
        small = self._small.copy()
        self._rows += measured(small, 0)
        del self._small[: len(small)]  # more may have come in the meantime
        return {row[0]: row for row in self._rows}
