"""Gradients that the last function of a call's graph sends on, and those of modules whose own were not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.testing.made_dumps import probe_call, probe_leaf, probe_records

Array = np.ndarray
_RANDOM = np.random.default_rng(5)
X, WEIGHT, BIAS, ARRIVING = (
    _RANDOM.standard_normal(shape).astype("f4") for shape in ((6, 16), (5, 16), (5,), (6, 5))
)


def linear_dump(
    folder: Path, *, tanh: float = 1.0, sent: float = 1.0, last: Array | None = None
) -> Path:
    """tanh, linear, and the backward of linear, which ends in `addmm`: bias, input, weight transposed."""
    entering = np.tanh(X) * np.float32(tanh)
    leaving = entering @ WEIGHT.T + BIAS
    weight = (entering.T @ ARRIVING) * np.float32(sent)
    gradients = [ARRIVING.sum(0), ARRIVING @ WEIGHT, weight] if last is None else [last]
    data = {
        "Torch.tanh.0.forward": probe_call([probe_leaf(X)], probe_leaf(entering)),
        "Functional.linear.0.forward": probe_call(
            [probe_leaf(one) for one in (entering, WEIGHT, BIAS)], probe_leaf(leaving)
        ),
        "Functional.linear.0.backward": {
            "input": [probe_leaf(ARRIVING)],
            "output": [probe_leaf(one) for one in gradients],
        },
    }
    return probe_records(folder, data)


def compared(tmp_path: Path, **candidate: Any) -> Comparison:
    return compare_recordings(
        linear_dump(tmp_path / "reference"), linear_dump(tmp_path / "candidate", **candidate)
    )


def test_a_gradient_of_the_weight_follows_from_what_went_in(tmp_path: Path) -> None:
    found = compared(tmp_path, tanh=1.01)
    assert [(one.op, one.phase.value) for one in found.origins] == [("torch.tanh", "forward")]


def test_a_wrong_gradient_of_the_weight_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, sent=1.01)
    place = ("torch.nn.functional.linear", "backward")
    assert [(one.op, one.phase.value) for one in found.origins] == [place]


@pytest.mark.parametrize("dtype", ["f8", "f2"])
def test_a_conversion_that_comes_last_in_one_run_is_not_judged(tmp_path: Path, dtype: str) -> None:
    found = compared(tmp_path, last=ARRIVING.astype(dtype))
    assert found.verdict is Verdict.INCOMPARABLE
    assert "ends in a different function" in found.not_compared[0]


def backward_dump(folder: Path, *, conv: float = 1.0, norm: float = 1.0) -> Path:
    """A block of conv and norm at level L0, where no gradient of norm itself was written."""
    wide = np.random.default_rng(7).standard_normal((4, 3, 8)).astype("f4")
    ones = np.ones(8, "f4")
    gradient = (wide * np.float32(0.3 * conv)).astype("f4")
    scale = (gradient.sum((0, 1)) * np.float32(norm)).astype("f4")
    names = {
        "Module.block.norm.BatchNorm2d": (wide, wide * np.float32(0.5)),
        "Module.block.conv.Conv2d": (wide * np.float32(0.5), wide * np.float32(0.25)),
        "Module.block.Block": (wide, wide * np.float32(0.25)),
    }
    data: dict[str, Any] = {}
    for name, (entering, leaving) in names.items():
        data[f"{name}.forward.0"] = probe_call([probe_leaf(entering)], probe_leaf(leaving))
    data["Module.block.norm.BatchNorm2d.forward.0"]["parameters"] = {"weight": probe_leaf(ones)}
    back = {"Module.block.conv.Conv2d": gradient}
    for name, sent in back.items():
        data[f"{name}.backward.0"] = {"input": [probe_leaf(wide)], "output": [probe_leaf(sent)]}
    data["Module.block.norm.BatchNorm2d.parameters_grad.0"] = {"weight": [probe_leaf(scale)]}
    data["Module.block.Block.backward.0"] = {
        "input": [probe_leaf(wide)],
        "output": [probe_leaf(gradient * np.float32(2))],
    }
    inside: dict[str, str | None] = {
        f"{name}.forward.0": "Module.block.Block.forward.0" for name in list(names)[:2]
    }
    return probe_records(folder, data, level="L0", parents=inside)


@pytest.mark.parametrize(
    ("planted", "module"), [({"conv": 1.01}, "block.conv"), ({"norm": 1.01}, "block.norm")]
)
def test_a_gradient_that_is_judged_by_the_block_around_follows_from_those_inside(
    tmp_path: Path, planted: dict[str, float], module: str
) -> None:
    sides = backward_dump(tmp_path / "a"), backward_dump(tmp_path / "b", **planted)
    assert [one.module for one in compare_recordings(*sides).origins] == [module]
    again = backward_dump(tmp_path / "c")
    assert compare_recordings(sides[0], again).verdict is Verdict.AGREE
