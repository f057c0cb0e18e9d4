"""Following the losses of a training alone, which runs nearly bare; once one parts, a step is recorded whole."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.core.manifest import Options
from lockstep.following.followed_losses import (
    LossComparison,
    LossPair,
    forget_losses,
    heard_in,
    write_expected,
)
from lockstep.launch import Ended, Event, launch
from lockstep.store.reader import Recording, open_recording
from lockstep.wings.follow.loss_floors import LossFloors


@dataclass(frozen=True, slots=True)
class FollowedRank:
    """The losses of one rank.

    name: Which.
    pairs: Those of both runs, in order of time, as far as this training was heard.
    last_expected: The last step of which the reference has a loss.
    is_whole: Whether it was heard to its end.
    """

    name: str
    pairs: tuple[LossPair, ...]
    last_expected: int
    is_whole: bool

    @property
    def compared(self) -> list[LossPair]:
        """The pairs of steps of which the reference has a loss."""
        return [pair for pair in self.pairs if not math.isnan(pair.floors)]

    @property
    def parted(self) -> LossPair | None:
        """The first that are further apart than their floor."""
        return next((pair for pair in self.pairs if pair.floors > 1), None)


@dataclass(frozen=True, slots=True)
class LossesFollowed:
    """The result by rank, the recording of the step that was taken whole (or None), and the command's end."""

    ranks: tuple[FollowedRank, ...]
    recorded: Recording | None
    ended: Ended

    @property
    def parted(self) -> tuple[str, LossPair] | None:
        """The first losses that part, and of which rank they are."""
        found = [(rank.name, rank.parted) for rank in self.ranks]
        parted = [(name, pair) for name, pair in found if pair is not None]
        return min(parted, key=lambda one: one[1].step, default=None)

    @property
    def step(self) -> int | None:
        """The step that was recorded whole, to its end."""
        ranks = () if self.recorded is None else self.recorded.ranks.values()
        return max((step for rank in ranks for step in rank.complete_steps), default=None)


def recorded_when_parted(reference: Options, save: str | None, *, go_on: bool) -> Options:
    """How the step is recorded in which the losses have parted: with whole tensors, of what the reference has."""
    return dataclasses.replace(
        reference, steps="0:", save=save or "tensors", emulate="", calibrate=False, redact=False,
        exit_after=not go_on, until_losses_part=True,
    )  # fmt: skip


def follow_losses(
    floors: LossFloors,
    command: Sequence[str],
    output: Path,
    options: Options,
    hear: Callable[[Event], None],
    *,
    force: bool,
    **streams: Any,
) -> LossesFollowed:
    """Run the command and hold its losses against those of the reference.

    What is recorded stays in `output`; where nothing is, that goes.

    Raises UsageError if the command cannot be started. Raises OutputExistsError if the directory is taken, or cannot be
    written.
    """

    directory = output.absolute()

    def prepared(environment: dict[str, str]) -> dict[str, str]:
        write_expected(directory, floors.expected)
        return environment

    ended = launch(command, directory, options, force=force, adjust=prepared, hear=hear, **streams)
    ranks = []
    for name, heard in heard_in(directory).items():
        expected = floors.expected.get(name, [])
        comparison = LossComparison(expected)
        pairs = (pair for loss in heard.losses for pair in comparison.add(*loss))
        last = max((one.step for one in expected), default=-1)
        ranks.append(FollowedRank(name, tuple(pairs), last, heard.ended))
    forget_losses(directory)
    recorded = open_recording(output)
    if not recorded.ranks:
        shutil.rmtree(directory)
        return LossesFollowed(tuple(ranks), None, ended)
    return LossesFollowed(tuple(ranks), recorded, ended)
