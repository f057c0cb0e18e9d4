"""Advice on optimizers that update all parameters in one operator."""

from __future__ import annotations

import pytest
import torch
from advising import advise

from lockstep.wings.migrate.advice.optimizers import known_optimizers
from lockstep.wings.migrate.names import has_name


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adadelta"])
def test_the_npu_has_fused_optimizers(name: str) -> None:
    text = f"import torch.optim as optim\n\nopt = optim.{name}(model.parameters(), lr=0.1)\n"
    (row,) = advise(text, apply=True).rows
    # then it is listed, also with --advice-apply: it rounds otherwise
    assert row.rule == "advice/fused-optimizer"
    assert row.outcome.value == "listed"
    assert row.replacement == f"torch_npu.optim.NpuFused{name}"
    assert "set_to_none=True) is refused" in row.reason


@pytest.mark.parametrize("target", ["neutral", "xpu", "mps"])
def test_other_devices_have_torchs_own_form(target: str) -> None:
    text = "from torch.optim import Adam\n\nopt = Adam(model.parameters())\n"
    (row,) = advise(text, target).rows
    assert (row.rule, row.replacement) == ("advice/fused-keyword", "fused=True")
    assert advise(text, "hpu").rows == ()


@pytest.mark.parametrize(
    "call",
    [
        "torch.optim.Adam(parameters, fused=True)",
        "torch.optim.Adam(parameters, foreach=False)",
        "torch.optim.SGD(parameters, lr=1, differentiable=True)",
        "torch.optim.SGD(parameters, **options)",
        "torch.optim.LBFGS(parameters)",
        "mine.optim.Adam(parameters)",
    ],
)
def test_other_optimizers_are_left_alone(call: str) -> None:
    for target in ("npu", "neutral"):
        assert advise(f"import mine\nimport torch\nopt = {call}\n", target).rows == ()


def test_an_argument_that_the_npu_does_not_know_keeps_the_optimizer() -> None:
    text = "import torch\nopt = torch.optim.SGD(parameters, lr=1, maximize=True)\n"
    assert advise(text).rows == ()
    assert advise(text, "neutral").rules == ["fused-keyword"]


def test_every_name_of_the_table_exists() -> None:
    for name, optimizer in known_optimizers().items():
        assert has_name("npu", optimizer.npu)
        kind = getattr(torch.optim, name.rpartition(".")[2])
        # then torch's own takes every argument that the NPU's is said to take
        parameter = torch.nn.Parameter(torch.zeros(1))
        values = {"params": [parameter], "betas": (0.9, 0.99)}
        given = {key: values.get(key, 0.5) for key in optimizer.npu_parameters}
        given |= {key: False for key in ("nesterov", "amsgrad", "centered") if key in given}
        kind(**given)
        if "neutral" in optimizer.fused_targets:
            kind([parameter], lr=0.1, fused=True)


def test_apex_for_the_npu_combines_gradients() -> None:
    text = """
        from apex import amp

        model, optimizer = amp.initialize(
            model, optimizer,
            opt_level="O2")
    """
    advised = advise(text, apply=True)
    (row,) = advised.of("combine-grad")
    assert row.outcome.value == "rewritten"
    assert 'opt_level="O2", combine_grad=True)\n' in advised.text
    assert advise(text).of("combine-grad")[0].replacement == "combine_grad=True"
    assert advise(text, "neutral").of("combine-grad") == []


@pytest.mark.parametrize(
    "call",
    [
        "amp.initialize(model)",
        "amp.initialize(model, [])",
        "amp.initialize(model, optimizer, combine_grad=False)",
        "amp.initialize(*arguments)",
        "amp.initialize(model, optimizer, **options)",
        "own.initialize(model, optimizer)",
    ],
)
def test_other_calls_of_apex_are_left_alone(call: str) -> None:
    text = f"import own\nfrom apex import amp\nresult = {call}\n"
    assert advise(text, apply=True).of("combine-grad") == []
