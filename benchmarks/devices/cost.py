"""What recording adds to a step of a GPT of 12 layers, by the device's own events."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import lockstep

WARM, STEPS, ROUNDS = 3, 6, 3
BARS = {"stats": 1.15, "sketch": 1.25}
EXTRA_BYTES = 64 << 20
WEIGHTS = ("armed", "stats", "sketch", "tensors")


@dataclass(frozen=True)
class Size:
    """Of the GPT that is timed."""

    layers: int
    width: int
    tokens: int
    batch: int


FULL, TOY = Size(12, 768, 512, 4), Size(1, 32, 8, 2)


class _Network(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1024, size.width)
        layer = nn.TransformerEncoderLayer(
            size.width,
            size.width // 16,
            4 * size.width,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.ModuleList(
            nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False).layers
        )
        self.head = nn.Linear(size.width, 1024)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _step_of(device: torch.device, size: Size) -> Callable[[], None]:
    torch.manual_seed(0)
    model = _Network(size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(1024, (size.batch, size.tokens)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()

    return step


class _HostEvent:
    """What stands for an event on a device without: the time of the CPU, which has done all before it."""

    def record(self) -> None:
        """Take the time."""
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is to be waited for."""

    def elapsed_time(self, other: _HostEvent) -> float:
        """Milliseconds from this event to another one."""
        return (other._at - self._at) * 1000


def event_of(device: torch.device) -> Any:
    """A new event that knows its time on the device's own stream."""
    if device.type == "cpu":
        return _HostEvent()
    return torch.Event(device=device, enable_timing=True)


class Clock:
    """Seconds between marks on the device's own stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Set a mark; nothing waits for the device."""
        event = event_of(self._device)
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        """The time between neighbouring marks, once the device has come past the last one."""
        self._marks[-1].synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairwise(self._marks)]


def _timed(
    step: Callable[[], None], device: torch.device, around: AbstractContextManager[Any]
) -> float:
    """The median step within a recording."""
    clock = Clock(device)
    with around:
        for _ in range(WARM):
            step()
        clock.mark()
        for _ in range(STEPS):
            step()
            clock.mark()
    return statistics.median(clock.seconds())


def _recording(weight: str, folder: Path) -> AbstractContextManager[Any]:
    if weight == "armed":
        return lockstep.record(folder, steps="1000000")
    # The first steps make tables and compile loops: those behind them are what a long recording costs.
    return lockstep.record(folder, steps=f"{WARM - 1}:{WARM + STEPS}", save=weight)


def _peak(device: torch.device) -> int:
    module: Any = getattr(torch, device.type)
    return int(module.max_memory_allocated()) if hasattr(module, "max_memory_allocated") else 0


def _reset_peak(device: torch.device) -> None:
    module: Any = getattr(torch, device.type)
    if hasattr(module, "reset_peak_memory_stats"):
        module.reset_peak_memory_stats()


def measure(
    device: torch.device,
    size: Size,
    *,
    rounds_of_each: int = ROUNDS,
    weights: Sequence[str] = WEIGHTS,
) -> dict[str, tuple[float, float, int]]:
    """For each weight: seconds of a bare step beside it and of a recorded one, and bytes more at the peak."""
    step = _step_of(device, size)
    found: dict[str, list[tuple[float, float, int]]] = {weight: [] for weight in weights}
    for _ in range(rounds_of_each):
        for weight, rounds in found.items():
            _reset_peak(device)
            bare, before = _timed(step, device, nullcontext()), _peak(device)
            _reset_peak(device)
            with tempfile.TemporaryDirectory() as name:
                recorded = _timed(step, device, _recording(weight, Path(name) / "recording"))
            rounds.append((bare, recorded, _peak(device) - before))
    return {
        weight: min(rounds, key=lambda one: one[1] / one[0]) for weight, rounds in found.items()
    }


def render(device: str, title: str, *, toy: bool) -> str:
    """The table of one device."""
    size = TOY if toy else FULL
    lines = [
        title, "",
        f"GPT of {size.layers} x {size.width}, {size.batch} x {size.tokens} tokens, best of {ROUNDS} rounds.", "",
        "| weight | bare step | recorded step | ratio | bar | more memory on the device |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for weight, (bare, recorded, more) in measure(torch.device(device), size).items():
        bar = f"{BARS[weight]:.2f}" if weight in BARS else ""
        memory = "n/a" if device == "cpu" else f"{max(more, 0) / 2**20:.0f} MB"
        lines.append(
            f"| {weight} | {bare * 1e3:.1f} ms | {recorded * 1e3:.1f} ms | {recorded / bare:.2f} | {bar} | {memory} |"
        )
    return "\n".join(lines) + "\n"
