"""The one command that leads on from a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from lockstep.commands.record_again import (
    RecordAgain,
    caveats,
    command_line,
    is_one_command,
    new_place,
    pattern_for,
    record_again,
    show_line,
    where_options,
)
from lockstep.core.errors import RecordingError
from lockstep.core.finding import Comparison, Course, Ends, Kind, Origin, Verdict, WhatNext
from lockstep.core.manifest import DEFAULT_RNG
from lockstep.core.not_compared import WhyNot
from lockstep.core.reason import About
from lockstep.core.records import Call, TensorRecord
from lockstep.core.remarks import beyond_noise
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.step_rows import Growth
from lockstep.core.told_facts import Told
from lockstep.locate.causes.explained_origins import made_by
from lockstep.replay.calls.held_results import BACKWARD, FORWARD, UPDATED
from lockstep.store.reader import Recording


@dataclass(frozen=True, slots=True)
class Manner:
    """How two recordings were compared.

    Parameters
    ----------
    options
        Options of `compare` that comparing others of the same two trainings takes too, such as a mapping.
    by_default
        Whether comparing without options finds the same, as `replay` does.
    is_golden
        Whether the code that made the reference is likely another than what is here, so that only the candidate can be
        recorded again.
    """

    options: tuple[str, ...] = ()
    by_default: bool = True
    is_golden: bool = False


def what_next(
    comparison: Comparison, reference: Recording, candidate: Recording, manner: Manner
) -> WhatNext:
    """Return the command to type after a comparison, and its purpose."""
    asked = _Asked(reference, candidate, manner)
    if comparison.origins:
        return asked.after_origin(comparison.origins[0])
    if comparison.uniform:
        return asked.after_uniform(comparison)
    if (step := _step_to_look_at(comparison)) is not None and not manner.is_golden:
        return asked.after_step_log(step)
    if comparison.crashes and comparison.not_compared == comparison.crashes:
        return asked.after_agreement(comparison)
    if asked.can_show_inside(comparison):
        return asked.with_compile_eager()
    if comparison.ends is not None and comparison.ends.course is Course.APART:
        return asked.after_parting(comparison.ends, comparison.steps)
    if comparison.verdict is Verdict.INCOMPARABLE:
        return asked.after_nothing(comparison)
    if any(
        one.differed or one.left or one.precision for one in comparison.windows
    ):  # no later step tells more
        return asked.what_they_hold()
    return asked.after_agreement(comparison)


def _step_to_look_at(comparison: Comparison) -> int | None:
    """The step of which the step logs say that a window there shows more; None without one."""
    logs = comparison.step_logs
    if logs is None:
        return None
    told = logs.first or logs.left
    if isinstance(told, Growth):
        return told.left_at
    return None if told is None else told.step


def after_origin(origin: Origin, reference: Recording, candidate: Recording) -> WhatNext:
    """Return the command that leads on at one of several origins; it names the site."""
    return _Asked(reference, candidate, Manner(by_default=False)).after_origin(origin)


_MADE = frozenset({*FORWARD, *BACKWARD, *UPDATED, Role.LOSS})


def made_at(
    origin: Origin, reference: Recording, candidate: Recording
) -> tuple[Call | None, Call | None]:
    """Return the operator or update of each run that made an origin's tensor; None if there is none."""
    pair = origin.finding.pair
    return (
        _made(origin, reference, pair.reference),
        _made(origin, candidate, pair.candidate),
    )


def _made(origin: Origin, run: Recording, record: TensorRecord | None) -> Call | None:
    if record is None or origin.phase in (Phase.INIT, Phase.DATA):
        return None
    try:
        if record.role in _MADE:
            call = made_by(run, record, origin.op)[1]
            return call if call is None or _gives(call, record) else None
        return _update_of(run, record) or _maker_of(run, record)
    except RecordingError:  # damaged there: the verdict stands without
        return None


def _gives(call: Call, record: TensorRecord) -> bool:
    """Whether a tensor is a result of a call: a gradient that enters an update is none of it."""
    return call.kind is not CallKind.OPTIMIZER or record.role in UPDATED


def _update_of(run: Recording, record: TensorRecord) -> Call | None:
    """The update that a tensor enters, where one is named for its settings."""
    for call in run.ranks[record.rank].calls(record.step) if record.rank in run.ranks else ():
        if call.kind is CallKind.OPTIMIZER and any(
            own is record or own == record for own in call.records
        ):
            return call
    return None


def _maker_of(run: Recording, record: TensorRecord) -> Call | None:
    """The last operator before a tensor is used that gave it; None for what no recorded call gave as it is."""
    roles = {Role.INPUT: FORWARD, Role.GRAD_OUTPUT: BACKWARD}.get(record.role, ())
    makers = [
        (own.sequence, call)
        for call in (run.ranks[record.rank].calls(record.step) if record.rank in run.ranks else ())
        if call.kind is CallKind.OPERATOR
        for own in call.with_role(*roles)
        if own.content.id == record.content.id and own.sequence < record.sequence
    ]
    return max(makers, key=itemgetter(0))[1] if makers else None


_HIDDEN = frozenset({WhyNot.COMPILED_UNBOUNDED, WhyNot.UNSEEN_INSIDE})
"""Why compiled code was not judged."""

_LOOK = "show what was recorded there"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The two recordings and how they were compared."""

    reference: Recording
    candidate: Recording
    manner: Manner

    @property
    def both(self) -> tuple[Recording, Recording]:
        return self.reference, self.candidate

    @property
    def _is_foreign(self) -> bool:
        """Whether an operator cannot be recorded for being run again."""
        return any(run.is_of_another_tool or run.other_framework for run in self.both)

    def after_origin(self, origin: Origin) -> WhatNext:
        pair = origin.finding.pair
        records = [
            (run, record)
            for run, record in zip(self.both, (pair.reference, pair.candidate), strict=True)
            if record is not None
        ]
        foreign = self._is_foreign
        unseeded = origin.reason.of(About.UNSEEDED)
        if unseeded and not foreign and not self.manner.is_golden:
            own = DEFAULT_RNG in unseeded[0].name
            return self._with_own_seed() if own else self._with_seed()
        if (
            origin.kind is Kind.RANDOM
            and not self.manner.is_golden
            and not any(foreign or run.manifest.options.seed is not None for run in self.both)
        ):
            return self._with_seed()
        if origin.kind is Kind.RECOMPUTED:  # both times of it stand there
            return self._at_site(records)
        if not origin.op:  # of no call: what the process holds
            return self.what_they_hold()
        if len(records) == 1:  # what one of them never did cannot be run again
            return self._at_lone_site(*records[0])
        if origin.reason.of(About.COMPILED) and any(map(self._can_show_inside, self.both)):
            return self.with_compile_eager()
        calls = [call for call in made_at(origin, *self.both) if call is not None]
        if not calls:
            return self._at_site(records)
        if all(map(is_whole, calls)) and not any(run.other_framework for run in self.both):
            site = (
                ()
                if self.manner.by_default
                else ("--only", calls[-1].site, *where_options(self.candidate, calls[-1]))
            )
            return WhatNext(
                "run it again, alone, on its recorded inputs",
                command_line("replay", *self._paths, *site),
            )
        if foreign:
            return self._at_site(records)
        sites = (*(record.site for _, record in records), *(call.site for call in calls))
        patterns = tuple(dict.fromkeys(pattern_for(site.module, site.op) for site in sites))
        has_all = all(_has_all(run, record, patterns) for run, record in records)
        written_otherwise = not has_all or self._is_replaced(calls, records)
        recorded = self._again(
            [run for run, _ in records],
            only=() if written_otherwise else patterns,
            steps=_with_the_one_before(records[0][1].step),
        )
        if written_otherwise:  # each call may be right alone: only what they are part of tells
            words = "record the step with whole tensors, and compare it again"
            return self._recorded(words, recorded, verb="compare")
        return self._recorded("record it with whole tensors, and run it again, alone", recorded)

    def _is_replaced(
        self, calls: Sequence[Call], records: Sequence[tuple[Recording, TensorRecord]]
    ) -> bool:
        """Whether either run calls an operator there that the other does not call in that module."""
        ops = {call.site.op for call in calls}
        if len(ops) == 1 or len(calls) < len(records):
            return False
        sites = [(call.site.module, call.site.op) for call in calls]
        known = [
            {(one.site.module, one.site.op) for one in run.ranks[record.rank].calls(record.step)}
            for run, record in records
        ]
        return not any(site in each for site, each in zip(sites, reversed(known), strict=True))

    def _at_site(self, records: Sequence[tuple[Recording, TensorRecord]]) -> WhatNext:
        lines = [show_line(run, record, record.site) for run, record in records]
        return WhatNext(_LOOK, " && ".join(lines))

    def _at_lone_site(self, run: Recording, record: TensorRecord) -> WhatNext:
        """A tensor that one run alone has, and what the other recorded of the same module in that step."""
        lines = [show_line(run, record, record.site)]
        other = self.reference if run is self.candidate else self.candidate
        if record.site.module and _has_module(other, record):
            lines.append(show_line(other, record, record.site.module))
        return WhatNext(_LOOK, " && ".join(lines))

    def after_uniform(self, comparison: Comparison) -> WhatNext:
        whole = all(run.has_whole_calls for run in self.both)
        if whole and not any(run.other_framework for run in self.both):
            return WhatNext("run one of them again, alone", command_line("replay", *self._paths))
        if self._is_foreign:
            return self.what_they_hold()
        member = comparison.uniform[0].members[0]
        only, step = [pattern_for(member.module, member.op)], str(comparison.steps[0])
        recorded = self._again(self.both, only=only, steps=step)
        return self._recorded("record one of them with whole tensors, and run it again", recorded)

    def after_parting(self, ends: Ends, compared: Sequence[int]) -> WhatNext:
        """Return the command that records the steps in which two runs part, if the recorded ones are equal.

        Where no loss tells these, they may part behind the last update, which is seen at their end alone.
        """
        first, behind = ends.steps_to_record or (0, 0)
        if self.manner.is_golden or set(range(first, behind)) <= set(compared):
            return self.what_they_hold()
        recorded = [
            record_again(
                run,
                steps=f"{first}:{behind}",
                save=run.manifest.options.save,
                word=f"step-{behind - 1}",
                exit_after=ends.parted_at is not None,
            )
            for run in self.both
        ]
        return self._recorded("see where the runs part", recorded, verb="compare")

    def after_step_log(self, step: int) -> WhatNext:
        """Return the command that records the step before, this one and the next, from one state in both runs."""
        if self._is_foreign:
            return self.what_they_hold()
        first = max(step - 1, 0)
        recorded = self._in_windows(f"{first}:{step + 2}", f"step-{step}", "program")
        words = f"record the steps around step {step} from one state, and compare them"
        return self._recorded(words, recorded, verb="compare")

    def after_nothing(self, comparison: Comparison) -> WhatNext:
        """Return the command that shows what each recording holds, if nothing was compared, else every pair.

        Where ranks were put together of less than whole tensors, it is the one that records these.
        """
        apart = any(run.put_together_of is not None for run in self.both)
        runs = [run.put_together_of or run for run in self.both]
        foreign = any(run.is_of_another_tool or run.other_framework for run in runs)
        kept_less = any(run.manifest.options.save != "tensors" for run in runs)
        if apart and kept_less and not (foreign or self.manner.is_golden):
            recorded = [record_again(run, steps=run.manifest.options.steps) for run in runs]
            words = "record whole tensors, of which ranks can be put together"
            return self._recorded(words, recorded, verb="compare")
        if comparison.compared:
            line = command_line("compare", *self._paths, *self.manner.options, "--all")
            return WhatNext("see what could be judged and what could not", line)
        return self.what_they_hold()

    def what_they_hold(self) -> WhatNext:
        """Return the command that shows the contents of each recording."""
        lines = [command_line("show", path) for path in dict.fromkeys(self._paths)]
        return WhatNext("see what each recording holds", " && ".join(lines))

    def after_agreement(self, comparison: Comparison) -> WhatNext:
        """Return the command that looks at later steps, or shows what a recording could not see.

        Once two trainings differ by rounding, a late step tells a fault only if both begin it with one state.
        """
        trained = min((count for count in comparison.trained if count is not None), default=0)
        later = sorted({trained // 2, trained - 1} - set(comparison.steps))
        optimizers = all(  # updates by hand are seen from the first step on alone
            rank.manifest.optimizers for run in self.both for rank in run.ranks.values()
        )
        seen_to_the_end = comparison.ends is not None and comparison.ends.course is Course.EQUAL
        stays = self.manner.is_golden or bool(self.candidate.manifest.options.inputs_of)
        leads_on = later and optimizers and not (seen_to_the_end or stays)
        if not (trained > len(comparison.steps) and leads_on):
            return WhatNext("see what was not recorded", command_line("show", self.candidate.path))
        if self._differs_by_rounding(comparison):
            return self._later_windows(trained, comparison.ends)
        steps = ",".join(map(str, later))
        recorded = self._again(self.both, steps=steps, save="", word="later")
        return self._recorded("compare later steps", recorded, verb="compare")

    def _differs_by_rounding(self, comparison: Comparison) -> bool:
        """Whether each training went its own course, not bit by bit, and a state of one can be set in the other."""
        logs = comparison.step_logs
        own = not comparison.windows and logs is not None and logs.equal_losses < logs.steps
        return (
            own and not self._is_foreign and all(run.put_together_of is None for run in self.both)
        )

    def _later_windows(self, trained: int, ends: Ends | None) -> WhatNext:
        """The command that compares later steps; where the ends say that one is bad, the one that finds it."""
        starts = sorted({trained // 2, max(trained - 2, 0)})
        windows = ",".join(f"{step}:{min(step + 2, trained)}" for step in starts)
        recorded = self._in_windows(windows, "later", self.reference.manifest.options.save)
        is_bad = ends is not None and beyond_noise(ends.notes) is not None
        if is_bad and all(one.is_whole for one in recorded):
            place = new_place(Path("zoom"))
            output = ["-o", place] if place != Path("zoom") else []
            line = command_line("zoom", *self._paths, *output)
            return WhatNext("find the first step at which that differs, from equal states", line)
        words = "compare later steps, which both runs begin with one state"
        return self._recorded(words, recorded, verb="compare")

    def _in_windows(self, windows: str, word: str, save: str) -> list[RecordAgain]:
        """The commands that record windows of the reference, and of the candidate from the reference's states."""
        recorded = partial(record_again, steps="", save=save, word=word, windows=windows)
        reference = recorded(self.reference)
        return [reference, recorded(self.candidate, start_from=reference.path)]

    def can_show_inside(self, comparison: Comparison) -> bool:
        """Return whether compiled code was not judged, and a run can be recorded again with the inside of it."""
        hidden = any(Told.of(one).facts.why in _HIDDEN for one in comparison.not_compared)
        return hidden and any(map(self._can_show_inside, self.both))

    def _can_show_inside(self, run: Recording) -> bool:
        """Whether a run can be recorded again with the inside of the code that it compiled."""
        if self._is_foreign or (self.manner.is_golden and run is self.reference):
            return False
        gaps = (gap for rank in run.ranks.values() for gap in rank.manifest.not_seen)
        return any(gap.compiled for gap in gaps)

    def with_compile_eager(self) -> WhatNext:
        """The command that records compiled code with its inside; a run that compiled nothing stays as it is."""
        paths, recorded = list[object](), list[RecordAgain]()
        for run in self.both:
            paths.append(run.path)
            if self._can_show_inside(run):
                options = run.manifest.options
                again = record_again(
                    run, steps=options.steps, save=options.save, word="eager", compile_eager=True
                )
                recorded.append(again)
                paths[-1] = again.path
        words = "see inside of the compiled code"
        last = command_line("compare", *paths, *self.manner.options)
        if not all(one.is_whole for one in recorded):
            return self._by_hand(words, recorded, last)
        lines = [f"{one.line}{' ; ' if one.may_fail else ' && '}" for one in recorded]
        words += caveats(recorded)
        return WhatNext(words, f"{''.join(lines)}{last}")

    def _with_seed(self) -> WhatNext:
        recorded = self._again(self.both, steps="", save="", seed=0, word="seeded")
        return self._recorded("give both the same random numbers", recorded, verb="compare")

    def _with_own_seed(self) -> WhatNext:
        """What can be typed where generators that the script made itself have no seed: no option reaches them."""
        shown = self.what_they_hold()
        words = f"give each {DEFAULT_RNG}() a seed in the script, as --seed does not reach it, and record both again"
        return WhatNext(f"{words}; until then, {shown.words}", shown.command)

    def _again(self, runs: Sequence[Recording], **how: Any) -> list[RecordAgain]:
        """The commands that record runs again: the reference before what is set to its states.

        runs: Which, in the order in which they are compared.
        how: As `record_again` takes it; `steps` and `save` as before where they are "".
        """
        made: dict[int, RecordAgain] = {}
        source: Path | None = None
        for run in sorted(runs, key=lambda one: bool(one.manifest.options.set_from)):
            options = run.manifest.options
            given = {name: value or getattr(options, name) if name in ("steps", "save") else value
                     for name, value in how.items()}  # fmt: skip
            made[id(run)] = record_again(run, start_from=source, **given)
            if not (options.set_from or self.manner.is_golden):
                source = made[id(run)].path
        return [made[id(run)] for run in runs]

    def _recorded(
        self, words: str, recorded: Sequence[RecordAgain], *, verb: str = "replay"
    ) -> WhatNext:
        """The commands that record, and what is done with it, on one line.

        What replays is recorded of the candidate alone where one command made both: what differs between them is then
        in files or the environment, and recorded again would be twice what is there now.
        """
        if verb == "replay" and (self.manner.is_golden or is_one_command(recorded)):
            recorded = recorded[-1:]
            words = "record the candidate with whole tensors, and run it again, alone"
        paths = [one.path for one in recorded]
        if len(paths) == 1:
            last = command_line("replay", *paths, "--whole")
        elif self.manner.options or verb == "compare":
            last = command_line("compare", *paths, *self.manner.options)
        else:
            last = command_line(verb, *paths)
        if not all(one.is_whole for one in recorded):
            return self._by_hand(words, recorded, last)
        words += caveats(recorded)
        ordered = sorted(recorded, key=lambda one: one.starts_from is not None)
        lines = [f"{one.line}{' ; ' if one.may_fail else ' && '}" for one in ordered]
        return WhatNext(words, f"{''.join(lines)}{last}")

    def _by_hand(self, words: str, recorded: Sequence[RecordAgain], last: str) -> WhatNext:
        """What can be typed where a training's own command is not known, and in words how it is recorded."""
        how = " and ".join(one.line for one in recorded)
        shown = self.what_they_hold()
        return WhatNext(
            f"{shown.words}; to {words}, start the training yourself, as its own command is not known here: {how};"
            f" then {last}",
            shown.command,
        )

    @property
    def _paths(self) -> tuple[object, ...]:
        return tuple(run.path for run in self.both)


def _has_module(run: Recording, record: TensorRecord) -> bool:
    """Whether a run has calls of a tensor's module in its step."""
    calls = run.ranks[record.rank].calls(record.step) if record.rank in run.ranks else ()
    return any(call.site.module == record.site.module for call in calls)


def _has_all(run: Recording, record: TensorRecord, patterns: Sequence[str]) -> bool:
    """Whether a run has calls for all these patterns of --only in a tensor's step: it refuses any other."""
    calls = run.ranks[record.rank].calls(record.step) if record.rank in run.ranks else ()
    known = {pattern_for(call.site.module, call.site.op) for call in calls}
    return known.issuperset(patterns)


def _with_the_one_before(step: int) -> str:
    """The step and the one before it: what stands in a wrong result may be left of that."""
    return f"{step - 1}:{step + 1}" if step else "0"


def is_whole(call: Call) -> bool:
    """Whether a call has tensors that were saved whole, and not some of them alone, as with `--save program`."""
    saved = [one.content.loader is not None for one in call.records if one.content.digest]
    return any(record.content.loader is not None for record in call.records) and all(saved)
