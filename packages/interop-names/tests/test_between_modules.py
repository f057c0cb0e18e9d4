"""Dumps of modules alone: what goes wrong between two of them is said to be there, and in neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Verdict
from lockstep.report.comparison.screen import headline
from lockstep.testing.made_dumps import probe_call, probe_leaf, probe_records

CLASSES = {"fc": "Linear", "rnn": "GRU", "head": "Linear"}


def dump(folder: Path, **factors: float) -> Path:
    """fc, tanh, rnn, head and what the model makes of it, forward and back; a factor for each that is wrong.

    `tanh` lies between fc and rnn, `last` behind head; `back_` is for gradients.
    """
    part = {name: np.float32(factors.get(name, 1)) for name in (*CLASSES, "tanh", "last")}
    back = {name: np.float32(factors.get(f"back_{name}", 1)) for name in (*CLASSES, "tanh")}
    value = np.random.default_rng(2).standard_normal((4, 8)).astype("f4")
    data: dict[str, Any] = {}
    entered = value
    for name, kind in CLASSES.items():
        left = np.sin(value + 1) * part[name]
        data[f"Module.{name}.{kind}.forward.0"] = probe_call([probe_leaf(value)], probe_leaf(left))
        value = np.tanh(left) * part["tanh"] if name == "fc" else left
    data["Module.Model.forward.0"] = probe_call(
        [probe_leaf(entered)], probe_leaf(value * np.float32(2) * part["last"])
    )
    gradient = np.random.default_rng(4).standard_normal((4, 8)).astype("f4")
    for name, kind in reversed(CLASSES.items()):
        sent = np.cos(gradient) * back[name]
        data[f"Module.{name}.{kind}.backward.0"] = {
            "input": [probe_leaf(gradient)], "output": [probe_leaf(sent)],
        }  # fmt: skip
        gradient = np.cos(sent) * back["tanh"] if name == "rnn" else sent
    parents: dict[str, str | None] = {
        f"Module.{name}.{kind}.forward.0": "Module.Model.forward.0"
        for name, kind in CLASSES.items()
    }
    return probe_records(folder, data, level="L0", parents=parents)


@pytest.mark.parametrize(
    ("planted", "place"),
    [
        ("tanh", "forward between fc and rnn, not recorded at L0"),
        ("last", "forward between head and the result of the model, not recorded at L0"),
        ("back_tanh", "backward between rnn and fc, not recorded at L0"),
        ("rnn", "forward of rnn (torch.nn.GRU)"),
        ("back_rnn", "backward of rnn (torch.nn.GRU)"),
    ],
)
def test_a_fault_between_modules_is_told_as_such(tmp_path: Path, planted: str, place: str) -> None:
    sound = dump(tmp_path / "sound")
    found = compare_recordings(sound, dump(tmp_path / "wrong", **{planted: 1.01}))
    assert headline(found).startswith(f"DIVERGED at step 0, {place}")
    assert len(found.origins) == 1
    assert compare_recordings(sound, dump(tmp_path / "again")).verdict is Verdict.AGREE
