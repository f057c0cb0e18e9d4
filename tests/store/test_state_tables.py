"""Tables of states and losses come back as they were written, and what makes no sense ends in one error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from lockstep.core.errors import CorruptError
from lockstep.core.records import STATISTICS
from lockstep.core.site import Role
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.core.states import LaterLoss, Moment, Standing, StateRecord
from lockstep.store import schema
from lockstep.store.encoding import parquet_bytes
from lockstep.store.state_tables import losses_in, states_in
from lockstep.store.tables import read_table

SKETCH = np.arange(SKETCH_SIZE, dtype="<f8").tobytes()
SOUND: dict[str, Any] = {
    "moment": "end",
    "step": 7,
    "module": "fc",
    "name": "fc.weight",
    "role": "param",
    "standing": "trained",
    "trainable": True,
    "dtype": "float32",
    "shape": [2, 3],
    "device": "cpu",
    "digest": "ab",
    "minimum": -1.0,
    "maximum": 1.0,
    "mean": 0.5,
    "norm": 2.0,
    "nan_count": 0,
    "inf_count": 0,
    "zero_count": 1,
    "sketch": SKETCH,
    "note": "",
}
SOUND |= {one.name: None for one in STATISTICS if one.added}


def read(path: Path, *rows: dict[str, Any]) -> list[StateRecord]:
    file = path / "end.parquet"
    values = [tuple(row[name] for name in schema.STATES) for row in rows]
    file.write_bytes(parquet_bytes(schema.STATES, values))
    return list(states_in(file, read_table(file, schema.STATES), with_sketches=True))


def test_states_with_equal_sketches_hold_one(tmp_path: Path) -> None:
    # given two states with equal sketches, and one whose sketch differs
    other = np.arange(1, SKETCH_SIZE + 1, dtype="<f8").tobytes()
    rows = [SOUND, SOUND | {"name": "b"}, SOUND | {"name": "c", "digest": "cd", "sketch": other}]
    first, second, third = (one.content for one in read(tmp_path, *rows))
    # then the two share it, and each state gives its own
    assert first.sketch_loader is second.sketch_loader is not third.sketch_loader
    assert [one.sketch.tobytes() for one in (first, second, third)] == [SKETCH, SKETCH, other]


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    again = SOUND | {"name": "fc.copy", "sketch": None}
    first, second = read(tmp_path, SOUND, again)
    assert (first.moment, first.step, first.standing) == (Moment.END, 7, Standing.TRAINED)
    assert (first.key, first.content.shape) == ((Role.PARAM, "fc.weight"), (2, 3))
    # a sketch stands once for all of its digest
    assert first.content.sketch is not None
    assert second.content.sketch is not None
    assert (first.content.sketch == second.content.sketch).all()


def test_what_could_not_be_read_comes_back_with_its_note(tmp_path: Path) -> None:
    numbers = (one.name for one in STATISTICS)
    empty = SOUND | dict.fromkeys(("digest", *numbers, "sketch")) | {"note": "meta tensor"}
    (found,) = read(tmp_path, empty)
    assert (found.content.digest, found.content.statistics) == (None, None)
    assert (found.content.sketch, found.content.note) == (None, "meta tensor")


@pytest.mark.parametrize(
    "change",
    [
        {"moment": "never"},
        {"role": "loss"},
        {"role": "nothing"},
        {"standing": ""},
        {"step": -1},
        {"shape": [-1, 2]},
        {"shape": [1 << 40, 1 << 40]},
        {"shape": [None]},
        {"sketch": b"short"},
        {"nan_count": -1},
        {"norm": -1.0},
        {"dtype": None},
        {"trainable": None},
        {"module": "." * 2000},
    ],
    ids=str,
)
def test_a_row_that_makes_no_sense_is_damage(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CorruptError):
        read(tmp_path, SOUND | change)


def test_one_state_twice_is_damage(tmp_path: Path) -> None:
    with pytest.raises(CorruptError):
        read(tmp_path, SOUND, SOUND)


def test_a_table_of_other_columns_is_damage(tmp_path: Path) -> None:
    file = tmp_path / "end.parquet"
    pl.DataFrame({"moment": ["end"], "step": ["x"]}).write_parquet(file)
    with pytest.raises(CorruptError):
        read_table(file, schema.STATES)


def test_names_of_anybody_come_back_printable(tmp_path: Path) -> None:
    (found,) = read(tmp_path, SOUND | {"name": "fc\x1b[31m.weight"})
    assert found.name.isprintable()


def test_losses_come_back_in_order(tmp_path: Path) -> None:
    file = tmp_path / "losses.parquet"
    rows = [(2, 0.5, "float32"), (2, math.inf, "float32"), (3, 0.25, "bfloat16")]
    file.write_bytes(parquet_bytes(schema.LOSSES, rows))
    assert losses_in(read_table(file, schema.LOSSES)) == tuple(LaterLoss(*row) for row in rows)
