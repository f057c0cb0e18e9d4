"""A recording beside the files that `lockstep convert` makes of it: what a form cannot hold is missing, no fault."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.core.finding import Verdict
from lockstep.store.reader import open_recording
from lockstep_interop_names.dumps.written_files import write_files

FORMS = ["npy", "npz", "safetensors", "h5"]


class OnePercent(TorchDispatchMode):
    """A kernel that gives 1 % too much."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 1.01 if str(func) == "aten.relu.default" else result


@cache
def recorded(*, wrong: bool = False) -> Path:
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with lockstep.record(path, steps="0:2", save="tensors"):
        for _ in range(2):
            optimizer.zero_grad()
            with OnePercent() if wrong else nullcontext():
                loss = model(torch.randn(5, 4)).square().mean()
            loss.backward()
            optimizer.step()
    return path


@cache
def converted(form: str, *, wrong: bool = False) -> Path:
    if form == "h5":
        pytest.importorskip("h5py")
    path = Path(mkdtemp(prefix="lockstep-tests-")) / form
    write_files(open_recording(recorded(wrong=wrong)), path, form)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_a_recording_agrees_with_what_was_made_of_it(form: str) -> None:
    for one, other in (
        (recorded(), converted(form)),
        (converted(form), recorded()),
        (converted(form), converted(form)),
    ):
        found = lockstep.compare_recordings(one, other)
        assert (found.verdict, found.origins) == (Verdict.AGREE, ())
        # Updates and gradients of every parameter meet their own.
        assert not any(
            "optim" in missing.pair.present.site.op for missing in found.findings[found.compared :]
        )


@pytest.mark.parametrize("form", FORMS)
def test_one_percent_is_named_beside_it(form: str) -> None:
    for one, other in (
        (recorded(), converted(form, wrong=True)),
        (converted(form), recorded(wrong=True)),
        (converted(form), converted(form, wrong=True)),
    ):
        found = lockstep.compare_recordings(one, other)
        assert found.verdict is Verdict.DIVERGED
        assert "relu" in found.origins[0].op.lower()


def test_an_update_that_a_form_lacks_is_missing_and_no_fault(tmp_path: Path) -> None:
    # Given files of which one parameter's update was left out
    write_files(open_recording(recorded()), tmp_path / "files", "npy")
    for file in (tmp_path / "files").rglob("torch.optim.AdamW#*/*0.bias*.npy"):
        file.unlink()
    found = lockstep.compare_recordings(recorded(), tmp_path / "files")
    # Then it is told, and no operator is blamed
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    assert any("0.bias" in sentence for sentence in found.not_compared)
