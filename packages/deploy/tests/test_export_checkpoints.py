"""Checkpoints as people bring them: prefixes of wrappers, averaged copies, objects besides weights, .safetensors."""

import argparse

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lockstep.core.errors import UsageError
from lockstep_deploy.model_source import model_source


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def loaded(path, **how):
    """The module with the weights of a checkpoint, and what was said."""
    source = model_source(str(path), factory=f"{__file__}:net", **how)
    return source.module.state_dict(), " ".join(source.said)


@pytest.fixture
def weights():
    torch.manual_seed(3)
    return net().state_dict()


def prefixed(state, prefix, **beside):
    return {f"{prefix}{key}": value for key, value in state.items()} | beside


def same(some, others):
    return all(torch.equal(one, others[name]) for name, one in some.items())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda state: {"state_dict": prefixed(state, "model."), "epoch": 3}, "took 'model.' off"),
        (lambda state: prefixed(state, "module._orig_mod."), "took 'module.' off"),
        (
            lambda state: prefixed(state, "module.", n_averaged=torch.tensor(5)),
            "took 'module.' off",
        ),
        (
            lambda state: prefixed(state, "ema_model.", initted=torch.tensor(True)),
            "took 'ema_model.'",
        ),
        (
            lambda state: {"state_dict_ema": state, "state_dict": prefixed(state, "x.")},
            "it holds state_dict",
        ),
    ],
)
def test_what_wrappers_put_in_front_is_taken_off_and_said(make, said, weights, tmp_path):
    torch.save(make(weights), tmp_path / "a.ckpt")
    found, told = loaded(tmp_path / "a.ckpt")
    assert same(found, weights)
    assert said in told


def test_weights_of_safetensors_are_read(weights, tmp_path):
    save_file(prefixed(weights, "net."), tmp_path / "a.safetensors")
    assert same(loaded(tmp_path / "a.safetensors")[0], weights)
    (tmp_path / "b.safetensors").write_bytes(b"no")
    with pytest.raises(UsageError, match="cannot be read as"):
        loaded(tmp_path / "b.safetensors")


def test_objects_besides_weights_are_read_where_they_are_trusted(weights, tmp_path):
    path = tmp_path / "a.pth.tar"
    torch.save({"state_dict": weights, "args": argparse.Namespace(lr=0.1)}, path)
    with pytest.raises(UsageError, match="--trust if you know who made it"):
        loaded(path)
    assert same(loaded(path, trusted=True)[0], weights)


def test_weights_of_another_model_are_refused(weights, tmp_path):
    torch.save({"model.0.weight": weights["0.weight"]}, tmp_path / "a.pt")
    with pytest.raises(UsageError, match="another model than the factory makes"):
        loaded(tmp_path / "a.pt")
