"""The substitute for one operator that a device lacks."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.rerun import Substitute


@dataclass(frozen=True, slots=True)
class OnTheCpu:
    """An operator that runs on the CPU instead.

    copies: Tensors that go there or back in one step of one rank.
    copied_bytes: Their bytes.
    how: What has it do so.
    """

    copies: float
    copied_bytes: float
    how: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """The substitute for an operator that a device lacks."""

    substitute: Substitute
    cpu: OnTheCpu | None
