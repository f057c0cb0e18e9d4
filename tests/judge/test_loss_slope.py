"""How far scores that are off take a cross-entropy: its recorded gradient tells, not the worst that scores may do."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from test_rounded_twice import measured, tensor_record
from torch import Tensor

from lockstep.core.finding import CallPair
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Judgement, Operation

ROWS, CLASSES = 64, 50
OP = "torch.nn.functional.cross_entropy"
TARGET = torch.arange(ROWS) % CLASSES
SCORES = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0))


def rounded_again(seed: int) -> Tensor:
    """The scores in bfloat16, as a kernel leaves them whose inputs are half a percent off."""
    noise = torch.randn(SCORES.shape, generator=torch.Generator().manual_seed(seed))
    return (SCORES * (1.0 + 0.005 * noise)).bfloat16()


def call_of(scores: Tensor, scale: float) -> tuple[Call, Tensor]:
    """A recorded call with its loss, and with the gradient that a scaled loss sends back."""
    wide = scores.float().requires_grad_()
    loss = F.cross_entropy(wide, TARGET)
    (loss * scale).backward()
    assert wide.grad is not None
    records = (
        replace(tensor_record(wide.grad.bfloat16(), Role.GRAD_INPUT, 0), name="args.0"),
        replace(tensor_record(torch.tensor([scale]), Role.GRAD_OUTPUT, 0), name="result"),
    )
    site = Site("", OP, 0, Phase.FORWARD)
    call = Call(1, "rank0", 0, CallKind.OPERATOR, site, "", -1, 0, (), {}, False, records)
    return call, loss.detach()


def judged(factor: float, *, scale: float = 1.0) -> Judgement:
    """What is said of a loss that the candidate has `factor` times."""
    scores = rounded_again(1), rounded_again(2)
    (left, loss), (right, other) = (call_of(one, scale) for one in scores)
    operation = Operation(
        op=OP,
        inputs=(measured(*scores, Role.INPUT), measured(TARGET, TARGET, Role.INPUT, 1)),
        calls=CallPair(left, right, "order"),
    )
    return ErrorModel().operator(operation, measured(loss, other * factor, Role.OUTPUT))


def test_a_loss_follows_from_scores_by_its_own_gradient() -> None:
    # Given scores in bfloat16 half a percent apart, when the loss is what each run's give, then that is explained
    for scale in (1.0, 1024.0):
        assert not judged(1.0, scale=scale).unexplained


def test_a_loss_that_is_off_by_a_twentieth_is_not_hidden_by_the_noise_of_scores() -> None:
    # Given the same, when one run's loss is a twentieth more, whatever loss scaling, then it is named
    for scale in (1.0, 1024.0):
        assert judged(1.05, scale=scale).unexplained
        assert judged(0.95, scale=scale).unexplained
