"""An update of a port: what PyTorch's optimizer makes of the numbers that entered another framework's is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lockstep
from lockstep.capture.sink import Sink
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.manifest import Options
from lockstep.core.site import CallKind, Phase, Role
from lockstep.report.comparison.verdict_words import headline

RATE, DECAY, EPSILON = 1e-2, 1e-2, 1e-8
X = np.random.default_rng(0).normal(size=(5, 12)).astype("f4")
FIRST = np.random.default_rng(1).normal(size=12).astype("f4")
DEAD = 3
"""An element whose gradient is noise."""


def gradient_of(weight: Any) -> Any:
    """Of the mean of the squares of the products with the batch, but for one element."""
    found = 2 * X.T @ (X @ weight) / len(X)
    found[DEAD] = 1e-10
    return found.astype("f4")


def with_torch(path: Path, kind: type[torch.optim.Optimizer], **settings: Any) -> None:
    weight = torch.nn.Parameter(torch.tensor(FIRST))
    module = torch.nn.Module()
    module.weight = weight
    optimizer = kind([weight], **settings)
    with lockstep.record(path, model=module, steps="0:3", save="tensors"):
        for _ in range(3):
            optimizer.zero_grad()
            (weight * torch.tensor(gradient_of(weight.detach().numpy()))).sum().backward()
            optimizer.step()


def with_numpy(path: Path, kind: str, fault: str) -> None:
    """The same by hand. The gradient that is noise is another number in the update than the one that is recorded."""
    weight, m, v = FIRST, np.zeros(12, "f4"), np.zeros(12, "f4")
    decay = 0.1 if fault == "decay" else DECAY
    epsilon = 1e-3 if fault == "epsilon" else EPSILON
    with Sink(
        path, {"numpy": np.__version__}, options=Options(steps="0:3", save="tensors")
    ) as sink:
        for t in (1, 2, 3):
            sink.step()
            sink.parameters({"weight": weight}, {"": "Module"})
            gradient = gradient_of(weight)
            gradient[DEAD] = 3e-10
            update = sink.open_call("", f"numpy.{kind}", kind=CallKind.OPTIMIZER, phase=Phase.OPTIMIZER)  # fmt: skip
            update.record(Role.PARAM, "weight", weight)
            update.record(Role.PARAM_GRAD, "weight", gradient)
            used = gradient.copy()
            used[DEAD] = -1e-10
            before = {"first": m, "second": v}
            if kind == "Velocity":  # minus the rate stands inside
                m = (0.9 * m - RATE * used).astype("f4")
                weight = (weight + m * (1.01 if fault == "rate" else 1)).astype("f4")
            else:
                m, v = 0.9 * m + 0.1 * used, 0.999 * v + 0.001 * used * used
                m, v = m.astype("f4"), v.astype("f4")
                step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + epsilon)
                rate = 1.01 * RATE if fault == "rate" else RATE
                weight = ((1 - RATE * decay) * weight - rate * step).astype("f4")
            for index, (name, after) in enumerate({"first": m, "second": v}.items()):
                update.record(Role.STATE, f"weight|{name}", before[name], index=index)
                update.record(Role.STATE_AFTER, f"weight|{name}", after, index=index)
            update.record(Role.PARAM_AFTER, "weight", weight)


@pytest.fixture
def adam(tmp_path: Path) -> Path:
    with_torch(tmp_path / "torch", torch.optim.AdamW, lr=RATE, weight_decay=DECAY, eps=EPSILON)
    return tmp_path / "torch"


def compared(reference: Path, kind: str, fault: str = "") -> Comparison:
    with_numpy(reference.parent / "numpy", kind, fault)
    return lockstep.compare_recordings(reference, reference.parent / "numpy")


def test_the_same_update_agrees_though_a_gradient_of_noise_was_another_number(adam: Path) -> None:
    found = compared(adam, "AdamW")
    assert found.verdict is not Verdict.DIVERGED, headline(found)


@pytest.mark.parametrize("fault", ["decay", "epsilon", "rate"])
def test_a_setting_that_the_other_framework_has_otherwise_is_named(adam: Path, fault: str) -> None:
    found = compared(adam, "AdamW", fault)
    assert found.verdict is Verdict.DIVERGED, headline(found)
    origin = found.origins[0]
    assert (origin.step, origin.phase, origin.tensor) == (0, Phase.OPTIMIZER, "weight")


def test_a_momentum_that_means_something_else_is_no_fault(tmp_path: Path) -> None:
    # given PyTorch's momentum, which sums gradients, beside one that sums what they move
    with_torch(tmp_path / "torch", torch.optim.SGD, lr=RATE, momentum=0.9)
    found = compared(tmp_path / "torch", "Velocity")
    assert found.verdict is not Verdict.DIVERGED, headline(found)
