"""While a CUDA graph is captured no number is taken: a copy to the host would break the capture."""

from __future__ import annotations

import pytest
import torch

from lockstep.capture.tensors import contents
from lockstep.devices.on_device.choice import is_captured


def test_a_tensor_of_a_captured_graph_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a device whose kernels are captured now
    monkeypatch.setattr(contents, "is_captured", lambda device: True)
    # then its tensors are recorded without numbers, and the reason is told
    assert contents.unreadable(torch.zeros(3)).startswith("inside a CUDA graph that is captured")


def test_elsewhere_tensors_are_read() -> None:
    assert not is_captured(torch.device("cpu"))
    assert contents.unreadable(torch.zeros(3)) == ""


def test_only_a_stream_that_captures_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for captures in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=captures: now)
        assert is_captured(torch.device("cuda", 0)) is captures
        assert not is_captured(torch.device("cpu"))
