"""Distinct contents: what is taken for the same, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.capture import contents
from lockstep.capture.contents import Contents
from lockstep.kernels.digest import digest_of_bytes


class Sink:
    """Keeps rows."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def add_content(self, row: Any) -> None:
        self.rows.append(row)

    def add_small_content(self, content: Any) -> int:
        self.rows.append(content)
        return 0

    def add_tensor(self, tensor: Any) -> int:
        return 0


@pytest.fixture
def sink() -> Sink:
    return Sink()


def count_passes(monkeypatch: pytest.MonkeyPatch, passes: list[str]) -> None:
    """Note each time that the numbers of a tensor are taken, with its digest or without."""

    def counted(name: str, taken: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            passes.append(name)
            return taken(*given, **named)

        return call

    for name in ("measured", "numbers_of"):
        monkeypatch.setattr(contents, name, counted(name, getattr(contents, name)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("save", ["stats", "sketch"])
def test_a_large_tensor_is_known_again_by_its_digest(
    sink: Sink, dtype: torch.dtype, save: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given large tensors: two the same in memory of their own, and one that differs in its last element
    first = torch.arange(200_000).remainder(1000).to(dtype)
    again, other = first.clone(), first.clone()
    other[-1] = 0
    passes: list[str] = []
    count_passes(monkeypatch, passes)

    # when they are met in turn
    known = Contents(sink, save)
    numbers = [known.of(tensor) for tensor in (first, again, other, again.clone())]

    # then the same content has one number and was measured once, and what looks alike is another one
    assert numbers == [0, 0, 1, 0]
    assert len(passes) == 2
    digests = [row[4] for row in sink.rows]
    raw = [tensor.view(torch.uint8).numpy() for tensor in (first, other)]
    assert digests == [digest_of_bytes(data) for data in raw]
