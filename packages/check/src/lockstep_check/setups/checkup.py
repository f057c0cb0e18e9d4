"""Holding two set-ups against each other, aspect by aspect, as two recordings tell of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lockstep.compare import (
    Given,
    GivenMapping,
    ModelSetup,
    Pairing,
    SetupDifference,
    WhatNext,
    command_again,
    command_line,
    model_setup,
    pair_recordings,
    rare_collections,
)
from lockstep.errors import UsageError
from lockstep.recordings import CallKind, RankRecording, opened
from lockstep_check.setups.answers import Answers
from lockstep_check.setups.batches import Batches
from lockstep_check.setups.calls import look_at_calls, look_at_start
from lockstep_check.setups.manifests import look_at_model, look_at_process, look_at_source

_OF_STEPS = (
    "weights", "weights-dtype", "data", "data-order", "data-preprocessing", "accumulation", "clipping", "loss",
    "flow", "loss-scale", "optimizer-state", "worker-seeds",
)  # fmt: skip

_BEHIND_FORWARD = ("accumulation", "clipping", "optimizer-state", "schedule", "length")


def checkup(reference: Given, candidate: Given, *, mapping: GivenMapping = None) -> Answers:
    """Hold the set-ups of two recordings against each other.

    Raises RecordingError if a recording cannot be read. Raises UsageError if the two have no rank in common.
    """
    pairing = pair_recordings(
        opened("reference", reference), opened("candidate", candidate), mapping
    )
    if not pairing.ranks.both:
        raise UsageError(pairing.why_incomparable(None) or "no rank occurs in both recordings")
    answers = _gathered(pairing)
    answers.what_next = _what_next(pairing, answers)
    return answers


def _what_next(pairing: Pairing, answers: Answers) -> WhatNext:
    """Whether what differs changes numbers; where nothing does, whether the reference is repeatable at all."""
    sides = (pairing.reference, pairing.candidate)
    if answers.differs and not pairing.candidate.manifest.options.before_backward:
        line = command_line("compare", *(one.path for one in sides))
        return WhatNext("see whether that changes numbers", line)
    if pairing.reference.is_of_another_tool:
        line = " && ".join(command_line("show", one.path) for one in sides)
        return WhatNext("see what each recording holds", line)
    line = command_again(pairing.reference, "check", "--repeat", "2")
    return WhatNext("see whether the reference is repeatable", line)


def _gathered(pairing: Pairing) -> Answers:
    answers = Answers()
    answers.not_known(["repeatable"], "two recordings do not tell; `lockstep check --repeat` does")
    setups: dict[str, ModelSetup] = {}
    for name, (left, right) in pairing.ranks.both.items():
        setups[name] = model_setup(left, right, pairing.names[name])
        look_at_process(left.manifest, right.manifest, answers)
        look_at_model(setups[name], left, right, pairing.names[name], answers)
    look_at_source(pairing.reference, pairing.candidate, answers)
    chosen = any(one.manifest.options.ranks for one in (pairing.reference, pairing.candidate))
    for sentence in pairing.ranks.alone if not chosen else ():
        answers.differ("sharding", SetupDifference(sentence, "-", "-"))
    if pairing.candidate.manifest.options.before_backward:
        answers.not_known(_BEHIND_FORWARD, "the command was stopped before its first backward")
    if stopper := pairing.why_incomparable(None):
        answers.notes.append(f"steps were not looked at: {stopper}")
        answers.not_known(_OF_STEPS, "no step of both could be laid side by side")
        return answers
    with rare_collections(), np.errstate(all="ignore"):
        _look_at_steps(pairing, setups, answers)
    return answers


def _look_at_steps(pairing: Pairing, setups: Mapping[str, ModelSetup], answers: Answers) -> None:
    """Look at every step that both recorded: a module may change its mode in the last one."""
    batches = {name: Batches(answers) for name in pairing.ranks.both}
    shared = pairing.shared_steps(None)
    for number, ranks in shared.items():
        for name, step in pairing.step(number, ranks).items():
            of_calls = Answers()
            look_at_calls(step, setups[name], pairing.names[name], of_calls)
            if not answers.steps:
                look_at_start(step, setups[name], answers)
                answers.take(of_calls)
            else:
                answers.take_new(of_calls, f"from step {number}")
            batches[name].add(number, step)
        answers.steps.append(number)
        pairing.close_tensors()
    for one in batches.values():
        one.tell()
    if not any(one.met for one in batches.values()):
        answers.not_known(["data", "data-order", "data-preprocessing"], "no batch was recorded")
    answers.alone.extend(pairing.not_compared(None))
    _look_at_shards(pairing, answers)


def _look_at_shards(pairing: Pairing, answers: Answers) -> None:
    """Ranks that read the same batch in one run alone, the first time."""
    if len(pairing.ranks.both) < 2:
        return
    left, right = zip(*pairing.ranks.both.values(), strict=True)
    for place, number in enumerate(answers.steps):
        words = [
            "the same on all ranks" if _read_alike(ranks, number) else "others on each rank"
            for ranks in (left, right)
        ]
        if words[0] != words[1]:
            found = SetupDifference(f"the batch of step {number}", words[0], words[1])
            answers.differ("sharding", found, place=place)
            return


def _read_alike(ranks: tuple[RankRecording, ...], number: int) -> bool:
    batches = [
        [
            record.content.digest
            for call in rank.calls(number, kind=CallKind.DATA)
            for record in call.records
            if record.content.numel > 1
        ]
        for rank in ranks
        if number in rank.steps
    ]
    return len(batches) > 1 and bool(batches[0]) and all(one == batches[0] for one in batches)
