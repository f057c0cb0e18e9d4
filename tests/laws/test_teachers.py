"""A teacher that answers without gradients between two steps, where no call is recorded, or with them within one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


def distilled(
    path: Path, *, is_detached: bool, dtype: torch.dtype, temperature: float = 1.0
) -> Path:
    """A student that learns from a teacher under autocast, three steps of it."""
    teacher, student = network(1), network(0)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16)
    batches = torch.randn(3, 32, 16, generator=torch.Generator().manual_seed(2))

    def answers(inputs: Tensor) -> Tensor:
        if is_detached:
            return teacher(inputs).detach().float() * temperature
        with torch.no_grad():
            return teacher(inputs).float()

    with lockstep.record(path, model=student, steps="0:3"):
        for inputs in batches:
            optimizer.zero_grad()
            with autocast:
                taught = answers(inputs)
                learned = student(inputs).float()
            loss = F.kl_div(learned.log_softmax(-1), taught.softmax(-1), reduction="batchmean")
            loss.backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_teacher_may_answer_without_gradients_or_be_detached(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    # given two scripts whose teachers give the same bits, in one of them where no call is recorded after the first step
    reference = distilled(tmp_path / "reference", is_detached=False, dtype=dtype)
    candidate = distilled(tmp_path / "candidate", is_detached=True, dtype=dtype)
    found = lockstep.compare_recordings(reference, candidate)
    # then what rounded within the teacher is no difference of the two
    assert found.verdict is Verdict.AGREE, [str(one.reason) for one in found.origins]

    # its twin: answers at another temperature
    other = distilled(tmp_path / "other", is_detached=True, dtype=dtype, temperature=1.002)
    assert lockstep.compare_recordings(reference, other).verdict is Verdict.DIVERGED
