"""The catalogue of devices: what names one, by its whole spelling, and what plug-ins add."""

from __future__ import annotations

import pytest
import torch

from lockstep.align.settings import are_set_otherwise
from lockstep.core import devices
from lockstep.core.devices import Device, add_devices, device_of


@pytest.mark.parametrize(
    "pair",
    [("cuda:0", "hpu:0"), ("cuda:0", "xla:0"), ("cuda", "npu:1"), ("cpu", "mlu"), ("meta", "cpu")],
)
def test_two_devices_are_one_setting(pair: tuple[str, str]) -> None:
    left, right = ({"args.1": one} for one in pair)
    assert not are_set_otherwise(left, right)


@pytest.mark.parametrize(
    "pair",
    [
        ("metadata", "cuda"),
        ("cpu_time", "cuda_time"),
        ("meta_mean", "mean"),
        ("cuda:0", "sum"),
        ("xlarge", "xla"),
        ("cpu:zero", "cpu:0"),
    ],
)
def test_a_word_that_begins_like_a_device_is_none(pair: tuple[str, str]) -> None:
    left, right = ({"kwargs.reduction": one} for one in pair)
    assert are_set_otherwise(left, right)


def test_a_plug_in_adds_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_known", dict(devices._known))
    assert device_of("sdaa:0") is None
    add_devices([Device("sdaa", library="torch_sdaa", backend="tccl", method=True)])
    found = device_of("sdaa:0")
    assert found is not None
    assert found.backend == "tccl"
    add_devices([Device("cuda", backend="other")])
    known = device_of("cuda")
    assert known is not None
    assert known.backend == "nccl"


def test_each_name_is_a_device_of_torch_or_has_a_library() -> None:
    for one in devices.devices():
        if not one.library:
            assert torch.device(one.name).type == one.name


def test_no_word_stands_for_two_devices() -> None:
    words = [word for one in devices.devices() for word in (one.name, *one.aliases)]
    assert len(words) == len(set(words)) == len(devices.spellings())
