"""What recordings say of modules that were given the inputs of a reference."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from lockstep.core.manifest import GIVEN_INPUTS
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.remarks import On, Remark
from lockstep.store.reader import RankRecording, Recording


def has_given_inputs(recording: Recording) -> bool:
    """Whether modules of a recording were given inputs of a reference."""
    return bool(recording.manifest.options.inputs_of)


def unseen_own_inputs(recording: Recording, steps: Collection[int] | None) -> Iterator[NotCompared]:
    """Yield own inputs that were replaced and are no recorded result, as what changed them is not seen otherwise.

    Of a recording of chosen modules alone, what is between them is not compared in any case.
    """
    options = recording.manifest.options
    if not has_given_inputs(recording) or options.only or options.skip:
        return
    for name, rank in recording.ranks.items():
        for step in sorted({one.step for one in rank.manifest.given_inputs}):
            if steps is None or step in steps:
                yield from _unseen(name, rank, step)


def _unseen(name: str, rank: RankRecording, step: int) -> Iterator[NotCompared]:
    recorded = {one.content.digest for call in rank.calls(step) for one in call.records}
    for given in rank.manifest.given_inputs:
        if given.step == step and given.own not in recorded:
            yield NotCompared(
                WhyNot.OWN_INPUT_UNSEEN, rank=name, names=(given.module,), at=given.name, step=step
            )


def notes_on_given_inputs(recording: Recording) -> Iterator[Remark]:
    """Yield what was given to modules, and why not."""
    if not has_given_inputs(recording):
        return
    manifests = [rank.manifest for rank in recording.ranks.values()]
    count = sum(len(one.given_inputs) for one in manifests)
    source = recording.manifest.options.inputs_of
    yield Remark(On.GIVEN_INPUTS, count=count, names=(source,))
    gaps = (gap for one in manifests for gap in one.not_seen if gap.what == GIVEN_INPUTS)
    for reason in dict.fromkeys(gap.reason for gap in gaps):
        yield Remark(On.NOT_GIVEN, reason=reason)
