"""Gradients that a scaler unscales in place, which torch counts as no change, and the norms that clipping takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import CallKind, Role
from lockstep.devices.emulation.mode import emulate
from lockstep.store.reader import open_recording

UNSCALE = "torch._amp_foreach_non_finite_check_and_unscale_"

Spoil = Callable[[list[Tensor]], None]
"""Changes gradients between unscaling and clipping, past every recorded call."""


def sound(gradients: list[Tensor]) -> None:
    """Leave the gradients as they are."""


def one_element_off(gradients: list[Tensor]) -> None:
    """Another number in one tensor of the list, by a hundredth."""
    memory = gradients[0].detach().numpy()
    memory *= 1.01


def recorded(
    path: Path, *, device: str = "reorder", spoil: Spoil = sound, most: float = 0.01
) -> Path:
    """Record two steps with a gradient scaler and clipping; equal arguments give equal numbers."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 96), nn.LayerNorm(96), nn.Tanh(), nn.Linear(96, 8))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu")
    with lockstep.record(path, model=net, steps="0:2"), emulate(device, training_only=True):
        torch.manual_seed(1)
        for _ in range(2):
            inputs, labels = torch.randn(64, 48), torch.arange(64) % 8
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(net(inputs), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            spoil([one.grad for one in net.parameters()])
            nn.utils.clip_grad_norm_(net.parameters(), most)
            scaler.step(optimizer)
            scaler.update()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("scaled") / "reference", device="ftz")


def judged(reference: Path, candidate: Path) -> Comparison:
    found = lockstep.compare_recordings(reference, candidate)
    assert found.laws is not None
    return found


def test_what_a_scaler_unscales_is_recorded_as_the_result_of_its_call(reference: Path) -> None:
    # given a recording with a scaler, whose operator returns nothing
    rank = open_recording(reference).ranks["rank0"]
    (call,) = (one for one in rank.calls(0) if one.site.op == UNSCALE)

    # then it gave what clipping takes the norms of, and the flag that it has written to
    (norm,) = (one for one in rank.calls(0) if one.site.op == "torch._foreach_norm")
    given = {one.name: one.content.id for one in call.with_role(Role.OUTPUT)}
    taken = {one.name: one.content.id for one in norm.with_role(Role.INPUT)}
    assert call.kind is CallKind.OPERATOR
    assert {name: given[name] for name in taken} == taken
    assert set(given) == {*taken, "args.1"}
    scaled = {one.name: one.content.id for one in call.with_role(Role.INPUT)}
    assert not {scaled[name] for name in taken} & set(taken.values())


def test_a_sound_device_that_adds_otherwise_agrees(reference: Path, tmp_path: Path) -> None:
    found = judged(reference, recorded(tmp_path / "candidate"))
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert (found.laws.not_judged, found.laws.breaches) == ((), ())


@pytest.mark.parametrize(
    ("device", "operator"),
    [
        ("reorder+wrong:_foreach_norm:scale:1.001", "torch._foreach_norm"),
        ("reorder+wrong:_foreach_mul_:scale:1.01", "torch._foreach_mul_"),
        (f"reorder+wrong:{UNSCALE.removeprefix('torch.')}:scale:1.01", UNSCALE),
    ],
)
def test_one_wrong_tensor_of_a_list_is_named(
    reference: Path, tmp_path: Path, device: str, operator: str
) -> None:
    found = judged(reference, recorded(tmp_path / "candidate", device=device))
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op == operator


def test_a_gradient_that_changes_before_clipping_diverges(reference: Path, tmp_path: Path) -> None:
    found = judged(reference, recorded(tmp_path / "candidate", spoil=one_element_off))
    assert found.verdict is Verdict.DIVERGED


def test_another_clipping_norm_diverges(reference: Path, tmp_path: Path) -> None:
    found = judged(reference, recorded(tmp_path / "candidate", most=0.0101))
    assert found.verdict is Verdict.DIVERGED
