"""The study of a search: Optuna's journal in the output folder, and which trial is next."""

from __future__ import annotations

import enum
import itertools
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from lockstep.errors import OutputExistsError, UsageError, reason_of
from lockstep.files import masked
from lockstep.launch import started_with
from lockstep_tune.search.given import FOLDER
from lockstep_tune.search.plan import Kind, Parameter, Plan, Value

try:
    import fcntl

    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, Trial, TrialState
except ModuleNotFoundError as error:  # the extra is not installed
    raise UsageError(
        f"{error.name} is not installed here: pip install 'lockstep-numerics[tune]'"
    ) from error

_JOURNAL = "journal.log"
WORKER = "worker"
"""The attribute of a trial that says which process runs it."""
_MOST_LOSSES = 3
"""How many times one set of values is tried where its process is killed: a third time it is the values that kill it."""


class Outcome(str, enum.Enum):
    """The outcome of a trial; kept with it."""

    DONE = "done"
    INFEASIBLE = "infeasible"
    PRUNED = "pruned"
    FAILED = "failed"
    LOST = "lost"
    """Its process was killed; the same values are tried again."""
    REPEATED = "repeated"
    """Its values were those of a trial before it; it was not run, and others were drawn."""


NOT_TRIED = (Outcome.LOST, Outcome.REPEATED)
"""Outcomes that say nothing of the values."""


def open_study(plan: Plan, folder: Path) -> optuna.Study:
    """Open the study of a folder, or make it.

    Raises OutputExistsError if the folder holds a different search, or cannot be written.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = JournalStorage(JournalFileBackend(str(folder / _JOURNAL)))
        study = optuna.create_study(
            study_name="lockstep", storage=storage, load_if_exists=True, sampler=_sampler(plan, 0),
            pruner=_pruner(plan), direction="maximize" if plan.target.maximize else "minimize",
        )  # fmt: skip
    except (OSError, ValueError, KeyError) as error:
        raise OutputExistsError(
            f"{folder}: the journal cannot be used ({reason_of(error)}); give another name"
        ) from error
    known = study.user_attrs.setdefault("subject", plan.subject())
    if known != plan.subject():
        raise OutputExistsError(
            f"{folder} holds a search of different values or a different target; give another name"
        )
    study.set_user_attr("subject", known)
    return study


def _sampler(plan: Plan, number: int) -> Any:
    """The sampler that draws one trial: seeded for it, so that no two processes draw the same."""
    return getattr(optuna.samplers, plan.sampler)(seed=_seed_of(plan, number))


def _seed_of(plan: Plan, number: int) -> int | None:
    if plan.seed is None:
        return None
    return int(np.random.SeedSequence([plan.seed, number]).generate_state(1)[0])


def _pruner(plan: Plan) -> Any:
    if plan.pruner == "MedianPruner":
        return optuna.pruners.MedianPruner(n_warmup_steps=plan.warmup_steps)
    if plan.pruner:
        return optuna.pruners.HyperbandPruner(min_resource=max(plan.warmup_steps, 1))
    return optuna.pruners.NopPruner()


@contextmanager
def at_work(folder: Path, *, shared: bool, waits_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder while the block runs: alone, or with the workers of one search.

    The system takes it from whoever is killed.

    Raises OutputExistsError if somebody else holds it, and still does after so many seconds.
    """
    until_s = time.monotonic() + waits_s
    with (folder / "lock").open("ab") as opened:
        while True:
            try:
                fcntl.flock(opened, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise OutputExistsError(
                        f"another search is at work in {folder}; wait for it, or give another name"
                    ) from None
            time.sleep(0.1)
        yield


def next_trial(study: optuna.Study, plan: Plan, folder: Path) -> Trial | None:
    """Draw the values of a trial; None where enough are done or at work, or no values are left.

    One process draws at a time, so that it knows what the others try.
    """
    with (folder / "turn").open("ab") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        tried = _tried(study)
        repeated = False
        while len(tried) < plan.trials:
            number = len(study.get_trials(deepcopy=False))
            left = _left(plan, tried) if repeated else None
            if left:
                choice = np.random.default_rng(_seed_of(plan, number)).integers(len(left))
                study.enqueue_trial(left[choice])
            elif left is not None:
                return None
            sampler = optuna.samplers.RandomSampler if repeated else None
            study.sampler = sampler(_seed_of(plan, number)) if sampler else _sampler(plan, number)
            trial = study.ask()
            trial.set_user_attr(WORKER, os.getpid())
            values = {one.name: suggested(trial, one) for one in plan.parameters}
            if _key(values) not in tried:
                return trial
            concluded(study, trial, Outcome.REPEATED, None, "")
            repeated = True
        return None


def is_exhausted(study: optuna.Study, plan: Plan) -> bool:
    """Whether all values that the plan allows were tried, which are then too few for its trials."""
    return _left(plan, _tried(study)) == []


def _tried(study: optuna.Study) -> list[_Key]:
    """The values of each trial that is done or at work."""
    return [
        _key(one.params)
        for one in study.get_trials(deepcopy=False)
        if one.state != TrialState.WAITING and one.user_attrs.get("outcome") not in NOT_TRIED
    ]


_Key = tuple[tuple[str, Value], ...]


def _key(values: Mapping[str, Value]) -> _Key:
    return tuple(sorted(values.items()))


def _left(plan: Plan, tried: Sequence[_Key]) -> list[dict[str, Value]] | None:
    """Values that no trial has had yet; None where there are too many to list, or they have no end."""
    choices = [_choices(one) for one in plan.parameters]
    if not all(choices) or math.prod(map(len, choices)) > _MOST_LISTED:
        return None
    names, known = [one.name for one in plan.parameters], set(tried)
    every = (dict(zip(names, values, strict=True)) for values in itertools.product(*choices))
    return [one for one in every if _key(one) not in known]


def _choices(one: Parameter) -> Sequence[Value]:
    """Every value of a parameter; none where they have no end."""
    if one.kind is Kind.FLOAT:
        return [one.low] if one.low == one.high else []
    return range(int(one.low), int(one.high) + 1) if one.kind is Kind.INT else list(one.choices)


_MOST_LISTED = 20_000
"""Up to how many sets of values the untried ones are listed; among more, a draw seldom repeats one."""


def suggested(trial: Trial, one: Parameter) -> Value:
    """Draw the value of a parameter."""
    value: Any
    if one.kind is Kind.FLOAT:
        value = trial.suggest_float(one.name, one.low, one.high, log=one.log)
    elif one.kind is Kind.INT:
        value = trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log)
    else:
        value = trial.suggest_categorical(one.name, list(one.choices))
    return cast(Value, value)


def concluded(
    study: optuna.Study, trial: Trial, outcome: Outcome, value: float | None, words: str
) -> None:
    """Keep what came of a trial."""
    trial.set_user_attr("outcome", outcome.value)
    trial.set_user_attr("words", masked(words))  # a script may print its own command
    if outcome is Outcome.INFEASIBLE:
        trial.set_constraint("lockstep", 1.0)  # Optuna: feasible where it is 0 or less
    if outcome is Outcome.DONE:
        study.tell(trial, value)
    else:
        is_void = outcome in (Outcome.FAILED, *NOT_TRIED)
        state = TrialState.FAIL if is_void else TrialState.PRUNED
        study.tell(trial, state=state)


def take_up(study: optuna.Study, folder: Path, worker: int | None) -> list[str]:
    """Give up trials whose worker is gone, and ask for their values again; returns a sentence for each.

    worker: The number of the process that is gone; None where all are.
    """
    told = []
    trials = study.get_trials(deepcopy=False)
    for one in trials:
        if one.state != TrialState.RUNNING or worker not in (None, one.user_attrs.get(WORKER)):
            continue
        end_processes(trial_folder(folder, one.number))
        trial = Trial(study, one._trial_id)
        losses = sum(other.params == one.params for other in trials if _was_lost(other))
        outcome = Outcome.LOST if losses < _MOST_LOSSES else Outcome.FAILED
        concluded(study, trial, outcome, None, "its process was killed")
        if outcome is Outcome.LOST and one.params:
            study.enqueue_trial(one.params)
        told.append(f"trial {one.number}: its process was killed; " + (
            "its values are tried again" if outcome is Outcome.LOST else "three times now, so it counts as failed"
        ))  # fmt: skip
    return told


def _was_lost(one: FrozenTrial) -> bool:
    failed = one.state in (TrialState.FAIL, TrialState.RUNNING)
    return failed and one.user_attrs.get("outcome") != Outcome.REPEATED


def trial_folder(folder: Path, number: int) -> Path:
    """Return where a trial leaves what it writes."""
    return folder / "trials" / f"{number:04d}"


def end_processes(folder: Path) -> None:
    """End what a trial has started and that is still there."""
    for number in started_with(FOLDER, str(folder)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)


def mend_journal(folder: Path) -> None:
    """Take away the last line of the journal where a process was killed while it wrote it; nobody else may write."""
    file = folder / _JOURNAL
    if file.exists():
        content = file.read_bytes()
        if content and not content.endswith(b"\n"):
            os.truncate(file, content.rfind(b"\n") + 1)
