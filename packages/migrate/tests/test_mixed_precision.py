"""The module that takes apex.amp's place: autocast in the forward, and a loss scale by apex's rule, here on the CPU."""

from __future__ import annotations

import copy
import runpy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lockstep_migrate.torch.apex import MODULE
from lockstep_migrate.torch.table import built_in

INPUTS = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture
def amp(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as it is written beside a script, with the CPU for an accelerator."""
    path = tmp_path / f"{MODULE}.py"
    path.write_text(built_in(path.name))
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: cpu)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    return SimpleNamespace(**runpy.run_path(str(path)))


def trained() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_forward_is_in_half_precision_and_its_result_and_loss_are_not(amp: Any) -> None:
    # given a model and a copy of it, as an average of weights makes one
    model, _ = amp.initialize(*trained())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()

    found, zeros = model(INPUTS), other(INPUTS)

    with torch.autocast("cpu", torch.float16):
        half = trained()[0](INPUTS)
    assert half.dtype == torch.float16
    assert torch.equal(found, half.float())
    assert torch.equal(zeros, other.bias.half().float().expand(3, 2))
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("delayed", [True, False])
def test_gradients_of_several_losses_add_up_as_without_a_scale(amp: Any, delayed: bool) -> None:
    plain, _ = trained()
    for part in (INPUTS, INPUTS / 2):
        with torch.autocast("cpu", torch.float16):
            result = plain(part)
        result.float().sum().backward()

    model, optimizer = amp.initialize(*trained(), opt_level="O1", loss_scale=1024)
    for part, waits in ((INPUTS, delayed), (INPUTS / 2, False)):
        with amp.scale_loss(model(part).sum(), optimizer, delay_unscale=waits) as scaled:
            scaled.backward()

    assert torch.equal(model.weight.grad, plain.weight.grad)
    assert list(amp.master_params(optimizer)) == list(model.parameters())


def test_a_step_that_overflows_is_skipped_once_and_halves_the_scale(amp: Any) -> None:
    model, optimizer = amp.initialize(*trained())
    before = model.weight.clone()
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        with amp.scale_loss(model(INPUTS).mean() * factor, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        assert torch.equal(model.weight, before) == (factor != 1.0)

    state = amp.state_dict()
    assert state == {"loss_scaler0": {"loss_scale": 2.0**15, "unskipped": 1}}
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 4.0, "unskipped": 7}})
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 4.0


def test_no_precision_stays_and_half_precision_weights_are_refused(amp: Any) -> None:
    model = amp.initialize(trained()[0], opt_level="O0")
    loss = model(INPUTS).sum()
    with amp.scale_loss(loss, None) as same:
        assert same is loss
    for wanted in ({"opt_level": "O2"}, {"keep_batchnorm_fp32": True}):
        with pytest.raises(NotImplementedError, match="use O1"):
            amp.initialize(model, **wanted)
