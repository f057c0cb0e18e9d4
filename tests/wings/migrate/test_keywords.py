"""Arguments that serve every device are kept with a word; loads that depend on where a file was saved are listed."""

from __future__ import annotations

import pytest
from migrating import kept, listed, rewritten


@pytest.mark.parametrize(
    "code",
    [
        "DataLoader(data, pin_memory=True)",
        "x.pin_memory()",
        "load(path, map_location=device)",
        "wrap(model, device_ids=[rank], output_device=rank)",
    ],
)
def test_what_serves_every_device_is_kept(code: str) -> None:
    assert rewritten(code) == code
    assert kept(code)
    assert listed(code) == []


@pytest.mark.parametrize(
    "code", ["torch.load(path)", "torch.load(path, weights_only=True)", "torch.jit.load(path)"]
)
def test_a_load_without_a_place_is_listed(code: str) -> None:
    assert listed("import torch\n" + code) == [code]


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path, device)",
        "torch.load(path, map_location=device)",
        "torch.load(path, **options)",
        "torch.load(*args)",
        "pickle.load(path)",
        "json.load(path)",
    ],
)
def test_a_load_with_a_place_is_not_listed(code: str) -> None:
    assert listed("import torch\n" + code) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("profile(use_cuda=True)", "profile(use_device=ACCELERATOR)"),
        ("profile(use_cuda=False)", "profile()"),
        ("profile(enabled=x, use_cuda=False)", "profile(enabled=x)"),
    ],
)
def test_the_profiler_is_told_the_device(before: str, after: str) -> None:
    head = "from torch.autograd.profiler import profile\n"
    assert rewritten(head + before) == head + after


def test_use_cuda_of_other_functions_stays() -> None:
    assert rewritten("train(use_cuda=True)") == "train(use_cuda=True)"


def test_a_profiler_whose_device_is_computed_is_listed() -> None:
    code = "import torch\ntorch.autograd.profiler.profile(use_cuda=flag)\n"
    assert listed(code) == ["use_cuda=flag"]
