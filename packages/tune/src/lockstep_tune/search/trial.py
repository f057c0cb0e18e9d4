"""One trial: parity with the reference first, then the training, then what it came to."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.compare import Kind as OriginKind
from lockstep.errors import SIGNALLED, ExitCode, UsageError
from lockstep.recordings import open_recording
from lockstep_tune.search.given import command_with, summaries_of
from lockstep_tune.search.objective import objective_of
from lockstep_tune.search.plan import Plan, Source, Value
from lockstep_tune.search.study import Outcome, end_processes

LOG, EVENTS, RECORDING = "output.log", "watch.jsonl", "recording"
_PARITY_LOG = "parity.log"
_LOOKS_EVERY_S = 0.05
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Came:
    """The result of a trial: its outcome, the objective if it has one, and the reason in words."""

    outcome: Outcome
    value: float | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trial's command, in its folder.

    plan, command, values: What is searched, the training's command without its values, and these.
    folder: Where it leaves what it writes; there already.
    report: Is given each step with its loss; says whether the trial is to be cut.
    goes_on: Whether whoever started this still lives.
    limit_s: Seconds that one run may take; None for any.
    """

    plan: Plan
    command: Sequence[str]
    values: Mapping[str, Value]
    folder: Path
    report: Callable[[int, float], bool]
    goes_on: Callable[[], bool]
    limit_s: float | None = None

    def run(self) -> Came:
        """Run it, and say what came of it. Raises UsageError if no trial could be run so."""
        words, variables = command_with(self.plan, self.command, self.values, self.folder)
        environment = os.environ | variables
        if self.plan.reference is not None:
            why = self._leaves_the_reference(words, environment)
            if why:
                return Came(Outcome.INFEASIBLE, words=why)
        came = self._trained(words, environment)
        if came is not None:
            return came
        return self._objective()

    def _leaves_the_reference(self, words: list[str], environment: dict[str, str]) -> str:
        """Record the reference's steps with these values; returns the fault, "" where there is none."""
        assert self.plan.reference is not None
        options = open_recording(self.plan.reference).manifest.options
        into = self.folder / RECORDING
        record = [
            "record", "-o", str(into), "--force", "--exit-after", "--steps", options.steps,
            "--level", options.level, "--save", options.save, "--", *words,
        ]  # fmt: skip
        log = self.folder / _PARITY_LOG
        code = self._end_of(_lockstep(record), environment, log)
        if code:
            return f"its recording ended with exit code {code}: {_last_line(log)}"
        answer = self.folder / "comparison.json"
        compare = ["compare", str(self.plan.reference), str(into), "--json"]
        self._end_of(_lockstep(compare), environment, answer, errors=log)
        return _fault_in(answer)

    def _trained(self, words: list[str], environment: dict[str, str]) -> Came | None:
        """Run the training to its end; None where it has one with an objective."""
        plan, log, events = self.plan, self.folder / LOG, self.folder / EVENTS
        watched = bool(plan.rules or plan.pruner)
        if watched:
            rules = [
                word for rule in plan.rules or ("not-finite",) for word in ("--only-rule", rule)
            ]
            watch = [
                "watch",
                "--events",
                str(events),
                "--force",
                "--lines",
                "0",
                "--stop-on",
                "any",
            ]
            every = [] if plan.rules else ["--every", str(plan.every)]
            words = _lockstep([*watch, *every, *rules, "--", *words])
        told = _Events(events)
        cut = False

        def looks() -> bool:
            nonlocal cut
            if watched and plan.pruner:
                cut = any(self.report(step, loss) for step, loss in told.losses())
            return cut

        code = self._end_of(words, environment, log, ends=looks)
        if watched:
            list(told.losses())
            code = told.code if told.code is not None else code
        if told.hit:
            return Came(Outcome.INFEASIBLE, words=told.hit)
        if cut:
            return Came(
                Outcome.PRUNED, words="cut: its losses are worse than those of other trials"
            )
        if code:
            return Came(Outcome.FAILED, words=f"exit code {code}: {_last_line(log)}")
        return None

    def _objective(self) -> Came:
        target = self.plan.target
        places = {
            "{folder}": str(self.folder),
            "{summaries}": str(summaries_of(self.plan, self.folder)),
        }
        where = target.where
        if target.source is not Source.PRINTED:
            for place, text in places.items():
                where = where.replace(place, text)
        value = objective_of(target, self.folder / LOG, where)
        if value is None:
            read = (
                "nothing printed matches"
                if target.source is Source.PRINTED
                else f"{target.name} is not in"
            )
            return Came(Outcome.FAILED, words=f"{read} {where}")
        if not math.isfinite(value):
            return Came(Outcome.INFEASIBLE, words=f"{target.name} is {value}")
        return Came(Outcome.DONE, value)

    def _end_of(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        output: Path,
        *,
        errors: Path | None = None,
        ends: Callable[[], bool] = lambda: False,
    ) -> int:
        """Run a command to its end; returns its exit code as a shell has it."""
        began = time.monotonic()
        with output.open("ab") as out, (errors or output).open("ab") as err:
            try:
                process = subprocess.Popen(
                    words, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise UsageError(
                    f"{words[0]}: the command cannot be started ({error.strerror or error})"
                ) from error
            try:
                while process.poll() is None:
                    late = self.limit_s is not None and time.monotonic() - began > self.limit_s
                    if late or ends() or not self.goes_on():
                        self._stop(process)
                        break
                    time.sleep(_LOOKS_EVERY_S)
            finally:
                if process.poll() is None:
                    self._stop(process)
        code = process.wait()
        return SIGNALLED - code if code < 0 else code

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        end_processes(self.folder)


class _Events:
    """What the watch has written into its event file so far, read on from where the last look ended."""

    def __init__(self, file: Path) -> None:
        self._file, self._at = file, 0
        self.code: int | None = None
        self.hit = ""

    def losses(self) -> Iterator[tuple[int, float]]:
        """Give each new step of the first rank with its loss; an inf is none that Optuna takes."""
        if not self._file.exists():
            return
        with self._file.open("rb") as opened:
            opened.seek(self._at)
            whole = opened.read().rpartition(b"\n")[0]
        self._at += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            event = json.loads(line)
            if event["event"] == "hit" and not self.hit:
                self.hit = _hit_words(event)
            if event["event"] == "ended":
                self.code = int(event["code"])
            if (
                event["event"] == "step"
                and event["rank"] == "rank0"
                and isinstance(event["loss"], int | float)
            ):
                yield int(event["step"]), float(event["loss"])


def _hit_words(hit: Mapping[str, Any]) -> str:
    site = f" at {hit['site']}" if hit["site"] else ""
    return f"{hit['rule']} in step {hit['step']}{site}: {hit['words']}"


def _fault_in(answer: Path) -> str:
    """Return the fault that a comparison names, or why it names nothing; "" where the trial may go on."""
    try:
        found = json.loads(answer.read_text("utf-8"))
    except ValueError:
        return f"it cannot be compared with the reference; see {answer.parent / _PARITY_LOG}"
    faults = [one for one in found["origins"] if one["kind"] == OriginKind.FAULT.value]
    if faults:
        first = faults[0]
        module = f"{first['module']} / " if first["module"] else ""
        return f"fault at {module}{first['op']} in step {first['step']} ({first['source']})"
    if found["exit_code"] == ExitCode.FAILED:
        return f"nothing was compared with the reference: {found['headline']}"
    return ""


def _lockstep(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "lockstep", *words]


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
