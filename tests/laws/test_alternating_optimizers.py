"""Two optimizers that take turns within a step, as in a GAN: the second pass takes what the first update left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role

STEPS = 2

Between = Callable[[nn.Module], None]
"""What a script does to a network between a backward pass and the update."""


def nothing(_: nn.Module) -> None:
    """Leave the gradients as they are."""


def clipped(net: nn.Module) -> None:
    """Clip them."""
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)


def recorded(
    path: Path,
    *,
    judged: Between = nothing,
    made: Between = nothing,
    left: Between = nothing,
    share: float = 1.0,
    spelled: bool = False,
    emulate: str = "",
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Record a GAN; `share` is what the loss of the generated samples counts for.

    `judged` and `made` come before an update, and `left` between that of the judge and the second pass.
    """
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16))
    judge = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3)
    both = nn.ModuleDict({"generator": generator, "judge": judge})
    with lockstep.record(path, model=both, steps=f"0:{STEPS}", emulate=emulate):
        torch.manual_seed(1)
        for _ in range(STEPS):
            real, drawn = torch.randn(24, 16), torch.randn(24, 8)
            of_judge.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                fake = generator(drawn)
                told = judge(real).float(), judge(fake.detach()).float()
            loss = F.softplus(-told[0]).mean() + share * F.softplus(told[1]).mean()
            loss.backward()
            judged(judge)
            of_judge.step()
            left(judge)
            of_generator.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                told_again = judge(fake).float()
            second = -F.logsigmoid(told_again).mean() if spelled else F.softplus(-told_again).mean()
            second.backward()
            made(generator)
            of_generator.step()
    return path


@dataclass(frozen=True)
class Clips:
    """A recording of a GAN that clips, and in which dtype autocast computes."""

    reference: Path
    dtype: torch.dtype

    def candidate(self, path: Path, *, judged: Between = clipped, left: Between = nothing) -> Path:
        """Record the same on a device that sums in another order."""
        return recorded(
            path, judged=judged, made=clipped, left=left, emulate="reorder", dtype=self.dtype
        )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("gan") / "plain")


def test_what_a_call_takes_behind_an_update_is_kept_whole(plain: Path) -> None:
    # given a step in which the judge is called again once it was updated
    calls: list[Call] = list(lockstep.open(plain).ranks["rank0"].calls(1))
    updates = [one for one in calls if one.kind is CallKind.OPTIMIZER]
    first = min(one.sequence for one in updates)
    left = {one.digest for call in updates for one in call.with_role(Role.PARAM_AFTER)}
    taken = [
        record
        for call in calls
        if call.kind is CallKind.OPERATOR and call.sequence > first
        for record in call.with_role(Role.INPUT)
        if record.argument and record.digest in left
    ]
    # then its parameters are what the update left, and there to run the call again
    assert {one.name for one in taken} == {
        f"judge.{at}.{name}" for at in (0, 2) for name in ("weight", "bias")
    }
    assert all(one.content.loader is not None for one in taken)


def test_a_sound_gan_agrees_by_the_laws(plain: Path, tmp_path: Path) -> None:
    # given the same on a device that sums in another order, and with a loss in another spelling
    candidate = recorded(tmp_path / "candidate", spelled=True, emulate="reorder")
    # when they are compared
    found = lockstep.compare_recordings(plain, candidate)
    # then the laws have judged every step, and nothing is wrong
    assert found.laws is not None
    assert (found.laws.verdict, found.laws.not_judged) == (Verdict.AGREE, ())
    assert found.verdict is Verdict.AGREE


def test_parameters_behind_an_update_are_not_called_changed_between_the_steps(
    tmp_path: Path,
) -> None:
    # given a sound GAN under bfloat16 autocast, where updates differ by noise
    pair = [
        recorded(tmp_path / name, emulate=name, dtype=torch.bfloat16) for name in ("", "reorder")
    ]
    # when it is compared
    found = lockstep.compare_recordings(*pair)
    # then no call of the second pass is blamed for what the first update left
    reasons = [str(one.finding.reason) for one in found.origins]
    assert not [one for one in reasons if "changed since the last step" in one]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def clipping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Clips:
    """A GAN that clips the gradients of both, to which the second pass adds those of the judge again."""
    path = tmp_path_factory.mktemp("clips") / "reference"
    return Clips(recorded(path, judged=clipped, made=clipped, dtype=request.param), request.param)


def test_a_pass_adds_to_gradients_that_were_clipped(clipping: Clips, tmp_path: Path) -> None:
    # given the same on a device that sums in another order
    candidate = clipping.candidate(tmp_path / "candidate")
    # when they are compared
    found = lockstep.compare_recordings(clipping.reference, candidate)
    # then the laws have judged all of it, and nothing is wrong
    assert found.laws is not None
    assert (found.laws.breaches, found.laws.not_judged) == ((), ())
    assert found.verdict is Verdict.AGREE


def test_a_clipped_gradient_that_changes_before_the_second_pass_is_told(
    clipping: Clips, tmp_path: Path
) -> None:
    # given a candidate that multiplies a gradient once its update has taken it
    def scaled(net: nn.Module) -> None:
        gradient = next(net.parameters()).grad
        assert gradient is not None
        gradient.data.mul_(1.5)

    candidate = clipping.candidate(tmp_path / "candidate", left=scaled)
    found = lockstep.compare_recordings(clipping.reference, candidate)
    assert found.verdict is Verdict.DIVERGED


class ScaledSums(TorchDispatchMode):
    """A kernel whose sums to one positive number are too large: the gradient of a bias of one element."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.sum.dim_IntList and found.numel() == 1 and found > 0:
            found = found * (1 + self.share)
        return found


def test_a_gradient_of_one_number_that_is_off_is_told(clipping: Clips, tmp_path: Path) -> None:
    # given a sum that is 3 % too large, of two that cancel to a tenth
    with ScaledSums(0.03):
        candidate = clipping.candidate(tmp_path / "candidate")
    # when it is compared
    found = lockstep.compare_recordings(clipping.reference, candidate)
    # then noise is no excuse
    assert found.verdict is Verdict.DIVERGED


def test_another_clip_is_told(clipping: Clips, tmp_path: Path) -> None:
    def other(net: nn.Module) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 0.051)

    candidate = clipping.candidate(tmp_path / "candidate", judged=other)
    found = lockstep.compare_recordings(clipping.reference, candidate)
    assert found.verdict is Verdict.DIVERGED


@pytest.mark.parametrize("fault", ["share", "gradient", "clip"])
def test_a_fault_of_either_turn_is_told(plain: Path, tmp_path: Path, fault: str) -> None:
    # given a candidate with a fault of 2 % in the judge's loss, in a gradient of the generator, or a clip of its own
    def scaled(net: nn.Module) -> None:
        gradient = next(net.parameters()).grad
        assert gradient is not None
        gradient.data.mul_(1.02)

    candidate = recorded(
        tmp_path / "candidate",
        share=1.02 if fault == "share" else 1.0,
        made=scaled if fault == "gradient" else nothing,
        judged=clipped if fault == "clip" else nothing,
        emulate="reorder",
    )
    # then it is found in the first step
    found = lockstep.compare_recordings(plain, candidate)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].step == 0
