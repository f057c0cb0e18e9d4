"""A layer whose input one run pads before: the gradients of its parameters are judged by the one that enters it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import lockstep
from lockstep.capture.sink import Sink
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import CallKind, Phase, Role
from lockstep.report.comparison.verdict_words import headline

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)
X, WEIGHT, Y, GRADIENT, SENT = (
    RANDOM.normal(size=shape).astype("f4")
    for shape in ((2, 3, 4, 4), (5, 3, 3, 3), (2, 5, 4, 4), (5, 3, 3, 3), (2, 5, 4, 4))
)


def recorded(path: Path, given: Array, gradient: Array, sent: Array) -> Path:
    """A step of one convolution: the tensor that goes in, its weight's gradient, and the gradient that comes back."""
    with Sink(path, {"numpy": "1"}) as sink:
        sink.step()
        sink.parameters({"conv.weight": WEIGHT}, {"conv": "torch.nn.Conv2d"})
        data = sink.open_call("", "batch", kind=CallKind.DATA, phase=Phase.DATA)
        data.record(Role.OUTPUT, "x", X)
        if given is not X:
            pad = sink.open_call("", "numpy.pad")
            pad.record(Role.INPUT, "args.0", X)
            pad.record(Role.OUTPUT, "result", given)
        call = sink.open_call(
            "conv", "torch.nn.Conv2d", kind=CallKind.MODULE, module_class="torch.nn.Conv2d"
        )
        call.record(Role.INPUT, "args.0", given)
        call.record(Role.OUTPUT, "result", Y)
        call.record(Role.GRAD_OUTPUT, "result", sent, phase=Phase.BACKWARD)
        sink.loss(np.float32(1.0))
        made = sink.open_call(
            "conv", "accumulate_grad", kind=CallKind.GRADIENT, phase=Phase.BACKWARD
        )
        made.record(Role.PARAM_GRAD, "conv.weight", gradient)
    return path


def compared(folder: Path, *, error: float) -> Comparison:
    """The candidate pads itself, and its weight's gradient is off by `error` beside rounding."""
    noise = np.float32(1) + RANDOM.normal(size=SENT.shape).astype("f4") * np.float32(1e-7)
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    candidate = recorded(folder / "two", padded, GRADIENT * np.float32(1 + error), SENT * noise)
    return lockstep.compare_recordings(recorded(folder / "one", X, GRADIENT, SENT), candidate)


def test_a_gradient_that_differs_as_much_as_what_it_is_made_of_agrees(tmp_path: Path) -> None:
    found = compared(tmp_path, error=2e-7)
    assert found.verdict is Verdict.AGREE, headline(found)


def test_one_that_differs_more_is_not_held_to_agree(tmp_path: Path) -> None:
    found = compared(tmp_path, error=1e-3)
    assert found.verdict is not Verdict.AGREE
    assert any("conv.weight" in one for one in found.not_compared) or found.origins
