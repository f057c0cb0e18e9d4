"""Running a search: worker processes that each take one trial after the other, and what becomes of killed ones."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

import optuna
from optuna.trial import Trial

from lockstep.errors import LockstepError, UsageError
from lockstep.plugin import VERSION
from lockstep.terminal import say
from lockstep_tune.search.plan import Plan, Value
from lockstep_tune.search.ray_trials import NODE, LostTrialError, RayTrials, node_here
from lockstep_tune.search.screen import came_words
from lockstep_tune.search.study import (
    NOT_TRIED,
    WORKER,
    Outcome,
    at_work,
    concluded,
    end_processes,
    is_exhausted,
    mend_journal,
    next_trial,
    open_study,
    take_up,
    trial_folder,
)
from lockstep_tune.search.trial import Attempt, Came

_MOST_FAILED = 3
"""How many trials may fail before the first one that does not: then it is the command that fails, not the values."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search in a folder.

    plan, command: What is searched, and the training's command.
    folder: Where the journal and the trials lie; an absolute path.
    limit_s: Seconds that one run of a trial may take; None for any.
    place: Where the command was given, on a cluster; None elsewhere.
    """

    plan: Plan
    command: tuple[str, ...]
    folder: Path
    limit_s: float | None = None
    place: Path | None = None

    def run(self, cluster: Callable[[], RayTrials] | None = None) -> optuna.Study:
        """Run trials until there are as many as planned; a killed worker is replaced.

        cluster: Joins a cluster on which trials run; None for processes of this machine.

        Raises OutputExistsError if the folder is of a different search, or another process searches in it. Raises
        UsageError if no trial could be run.
        """
        with at_work(self.folder, shared=False, waits_s=_WAITS_S):
            mend_journal(self.folder)
            study = open_study(self.plan, self.folder)
            self._tell(take_up(study, self.folder, None))
        with at_work(self.folder, shared=True):
            ray = None if cluster is None or not self._has_more(study) else cluster()
            try:
                while self._has_more(study):
                    if ray is None:
                        self._run_workers(study)
                    else:
                        self._run_tasks(ray)
                    self._tell(take_up(study, self.folder, None))
            finally:
                if ray is not None:
                    ray.close()
        if is_exhausted(study, self.plan):
            say("all values that the file allows were tried, each once")
        return study

    def _has_more(self, study: optuna.Study) -> bool:
        tried = [one for one in study.get_trials(deepcopy=False) if "outcome" in one.user_attrs]
        counted = [one for one in tried if one.user_attrs["outcome"] not in NOT_TRIED]
        if len(counted) >= self.plan.trials or all_failed(study):
            return False
        return not is_exhausted(study, self.plan)

    def _run_workers(self, study: optuna.Study) -> None:
        """Run workers until all have ended by themselves."""
        processes = multiprocessing.get_context("spawn")

        def started() -> BaseProcess:
            one = processes.Process(target=work, args=(self, os.getpid()))
            one.start()
            return one

        workers = [started() for _ in range(self.plan.processes)]
        try:
            while workers:
                multiprocessing.connection.wait([one.sentinel for one in workers])
                for one in [one for one in workers if not one.is_alive()]:
                    workers.remove(one)
                    if one.exitcode == _REFUSED:
                        raise UsageError(
                            f"no trial can be run; the reason is above, and in {self.folder}"
                        )
                    if one.exitcode:
                        self._tell(take_up(study, self.folder, one.pid))
                        if self._has_more(study):
                            workers.append(started())
        finally:
            for one in workers:
                one.terminate()
                one.join()

    def _run_tasks(self, ray: RayTrials) -> None:
        """Run trials on a cluster, several at a time, until no more are to be begun."""
        with ThreadPoolExecutor(self.plan.processes) as slots:
            running = [slots.submit(self._run_slot, ray) for _ in range(self.plan.processes)]
            for one in running:
                one.result()

    def _run_slot(self, ray: RayTrials) -> None:
        """Run one trial after the other on a cluster; a lost one's values are tried again."""
        study = open_study(self.plan, self.folder)
        while True:
            trial = None if all_failed(study) else next_trial(study, self.plan, self.folder)
            if trial is None:
                return
            own = -1 - trial.number  # of this trial alone: all slots are of one process
            trial.set_user_attr(WORKER, own)
            try:
                came = ray.run(self, trial.number, VERSION)
            except LostTrialError as error:
                say(f"trial {trial.number}: {error}")
                attributes = study.get_trials(deepcopy=False)[trial.number].user_attrs
                ray.end(self.folder, trial.number, str(attributes.get(NODE, "")))
                self._tell(take_up(study, self.folder, own))
                continue
            self._conclude(study, trial, came)

    def _conclude(self, study: optuna.Study, trial: Trial, came: Came) -> None:
        concluded(study, trial, came.outcome, came.value, came.words)
        say(came_words(trial.number, came, self.plan.target.name, trial.params))

    def _tell(self, sentences: list[str]) -> None:
        for sentence in sentences:
            say(sentence)


_WAITS_S = 20.0
"""How long the workers of a search that was killed may take to see that, and to end their trainings."""

_REFUSED = 3
"""A worker's exit code where no trial can be run at all."""


def all_failed(study: optuna.Study) -> bool:
    """Whether so many trials failed, and no other has ended, that the command itself is at fault."""
    outcomes = [one.user_attrs.get("outcome") for one in study.get_trials(deepcopy=False)]
    ended = [one for one in outcomes if one not in (None, *NOT_TRIED)]
    return len(ended) >= _MOST_FAILED and set(ended) == {Outcome.FAILED}


def work(search: Search, parent: int) -> None:
    """Take one trial after the other, as a process of its own, while the process that started it lives."""
    with at_work(search.folder, shared=True):
        try:
            _work(search, lambda: os.getppid() == parent)
        except LockstepError as error:
            say(str(error))
            sys.exit(_REFUSED)


def _work(search: Search, goes_on: Callable[[], bool]) -> None:
    plan, folder = search.plan, search.folder
    study: optuna.Study | None = None
    while goes_on():
        if study is None:
            study = open_study(plan, folder)
        trial = None if all_failed(study) else next_trial(study, plan, folder)
        if trial is None:
            return
        came = _tried(search, study, trial, goes_on)
        if not goes_on():
            return  # whoever takes the search up asks for these values again
        search._conclude(study, trial, came)


def attempted(search: Search, number: int, version: str) -> Came:
    """Run a trial that the search has drawn, on the node of a cluster on which this is called.

    Raises UsageError if this is a different version of Lockstep, or the search's folder is not here. Raises
    LostTrialError if the node ends: its trainings are ended with it, and have not failed by themselves.
    """
    here = f"node {socket.gethostname()}"
    if version != VERSION:
        raise UsageError(
            f"{here}: has Lockstep {VERSION}, and the search {version}; install the same version there"
        )
    if not search.folder.is_dir():
        raise UsageError(f"{here}: has no folder {search.folder}; mount it under the same path")
    os.chdir(search.place or search.folder)
    parent = os.getppid()
    study = open_study(search.plan, search.folder)
    known = next(one for one in study.get_trials(deepcopy=False) if one.number == number)
    trial = Trial(study, known._trial_id)
    trial.set_user_attr(NODE, node_here())

    def goes_on() -> bool:
        return os.getppid() == parent

    came = _tried(search, study, trial, goes_on)
    if came.outcome is not Outcome.DONE and not goes_on():
        raise LostTrialError(f"{here}: ends, and has ended the training")
    return came


def _tried(search: Search, study: optuna.Study, trial: Trial, goes_on: Callable[[], bool]) -> Came:
    values = {one.name: cast(Value, trial.params[one.name]) for one in search.plan.parameters}
    place = trial_folder(search.folder, trial.number)
    place.mkdir(parents=True, exist_ok=True)
    try:
        return Attempt(
            search.plan,
            search.command,
            values,
            place,
            partial(_report, study, trial),
            goes_on,
            search.limit_s,
        ).run()
    finally:
        end_processes(place)


def _report(study: optuna.Study, trial: Trial, step: int, loss: float) -> bool:
    """Hand a loss on to the pruner; less is better of it, whatever is better of the objective."""
    maximizes = study.direction == optuna.study.StudyDirection.MAXIMIZE
    trial.report(-loss if maximizes else loss, step)
    return trial.should_prune()
