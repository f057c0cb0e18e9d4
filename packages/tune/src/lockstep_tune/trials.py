"""A trial: the command run in one state, recorded as the reference was, and compared with it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from lockstep.compare import (
    Comparison,
    Finding,
    answer_of,
    compare_recordings,
    headline,
    lines_below,
)
from lockstep.compare import Outcome as PairOutcome
from lockstep.errors import SIGNALLED, ExitCode, LockstepError
from lockstep.launch import launch
from lockstep.recordings import Options, Recording, Role, open_recording
from lockstep.terminal import tell
from lockstep_tune import settings
from lockstep_tune.bisecting import Outcome, Trial
from lockstep_tune.commits import Repository
from lockstep_tune.rewrites import rewritten
from lockstep_tune.settings import Settings
from lockstep_tune.switches import INSIDE, VARIABLE, State

INTERRUPTED = (SIGNALLED + signal.SIGINT, SIGNALLED + signal.SIGTERM)
"""Codes of a command that somebody has ended: that says nothing of a state, and the search goes on another time."""


class Trials:
    """Runs the command in a state, records it as the reference was, and compares the two.

    reference: What it is compared with.
    command: What is run.
    place: Where recordings go.
    streams: As `lockstep.launch.launch` takes them.
    repository: Where commits are from, None where none is searched.
    keeps: Whether recordings stay.
    """

    def __init__(
        self,
        reference: Recording,
        command: Sequence[str],
        place: Path,
        streams: dict[str, Any],
        repository: Repository | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self._reference, self._command = reference, command
        self._place, self._streams = place, streams
        self._repository, self._keeps = repository, keeps
        self._strict = False
        known = reference.manifest.options
        self._options: Options = dataclasses.replace(
            known, calibrate=False, emulate="", redact=False, compile_eager=False
        )
        self._count = 0

    def run(self, state: State) -> Trial:
        """Run a state and return the verdict on it."""
        caches = self._place / f"caches{self._count}"
        try:
            compared, notes = self.compared(state, own_caches(caches))
        finally:
            shutil.rmtree(caches, ignore_errors=True)
        if isinstance(compared, str):
            return Trial(state.name, Outcome.UNTOLD, compared)
        outcome, words, short = self._judged(compared, state)
        return Trial(state.name, outcome, words, notes, short)

    def compared(
        self, state: State, variables: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Comparison | str, tuple[str, ...]]:
        """Run a state and compare it with the reference, or say why nothing can be told; and what the run told.

        `variables` are set besides those of the state.
        """
        folder = self._place / f"trial{self._count}"
        self._count += 1
        notes = folder.with_suffix(".json")
        try:
            why = self._record(state, folder, notes, variables)
            if why:
                return why, ()
            candidate = open_recording(folder)
            told = json.loads(notes.read_text("utf-8")) if notes.exists() else None
            found = compare_recordings(self._reference, candidate)
            return found, tuple(told or _innermost_modules(candidate))
        finally:
            notes.unlink(missing_ok=True)
            if not self._keeps:
                shutil.rmtree(folder, ignore_errors=True)

    def _record(self, state: State, folder: Path, notes: Path, given: Mapping[str, str]) -> str:
        """Run the command; returns why nothing can be told of it, "" where it can."""
        inside = [one for one in state.without if one != "compile"]
        loads = (
            [INSIDE] if inside or state.float32 or "TORCH_BISECT_MAX" in state.environment else []
        )
        request = {"without": inside, "float32": state.float32, "notes": str(notes)}
        variables = {**given, **state.environment, VARIABLE: json.dumps(request)}
        words = state.command or self._command
        command, where = [state.python or words[0], *words[1:]], dict(self._streams)
        if state.settings != Settings():
            loads.append(settings.INSIDE)
            variables |= state.settings.variables()
            command = state.settings.command(command)
        if "compile" in state.without:
            variables["TORCHDYNAMO_DISABLE"] = "1"
        if state.commit and self._repository is not None:
            copy = self._place / f"files{self._count}"
            self._repository.copy(state.commit, copy)
            command = self._repository.redirected(command, copy)
            where["cwd"] = self._repository.folder_in(copy)
            variables["PYTHONDONTWRITEBYTECODE"] = "1"
        try:
            with rewritten(command, state.settings.rewrites, where) as (words, streams):
                ended = launch(
                    words, folder, dataclasses.replace(self._options, loads=loads), force=True, hear=tell,
                    adjust=lambda environment: environment | variables, **streams,
                )  # fmt: skip
        except LockstepError as error:
            return str(error)
        finally:
            if state.commit:
                shutil.rmtree(copy, ignore_errors=True)
        if ended.code in INTERRUPTED:
            raise click.Abort
        if ended.code:
            return f"the command ended with exit code {ended.code}"
        return f"nothing was recorded: {ended.why_nothing}" if ended.why_nothing else ""

    def _judged(self, compared: Comparison, state: State) -> tuple[Outcome, str, str]:
        words, short = in_short(compared), answer_of(compared).short
        if state.float32:
            return _judged_by_results(compared)
        if compared.other_precision_alone and self._count == 1:
            self._strict = True  # it is what there is to search
        code = compared.exit_code(strict=self._strict)
        if code == ExitCode.FAILED:
            return Outcome.UNTOLD, words, ""
        outcome = Outcome.DIFFERS if code == ExitCode.DIFFERS else Outcome.AGREES
        return outcome, words, short


def own_caches(folder: Path) -> dict[str, str]:
    """Variables with which torch.compile keeps what it makes in a folder of its own.

    A cache is looked up by the graph and the settings, not by the code that lowers it: what another run has left there
    would stand in for what this one compiles.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }


def in_short(compared: Comparison) -> str:
    """The verdict, and what stands first below it."""
    return ": ".join([headline(compared), *lines_below(compared)[:1]])


def results_of(compared: Comparison) -> list[Finding]:
    """Return the findings about losses and parameters' gradients."""
    wanted = (Role.LOSS, Role.PARAM_GRAD)
    return [one for one in compared.findings if one.pair.present.role in wanted]


def _judged_by_results(compared: Comparison) -> tuple[Outcome, str, str]:
    """Judge by losses and gradients alone: that part of the model is of another dtype is what was asked for."""
    found = results_of(compared)
    apart = [one for one in found if one.outcome is PairOutcome.DIFFER]
    if apart:
        first = apart[0].pair.present
        words = f"{first.name or first.role.value} and {len(apart) - 1} more results differ"
        return Outcome.DIFFERS, words, words
    if not found:
        return Outcome.UNTOLD, "neither losses nor gradients were recorded", ""
    words = f"all {len(found)} losses and gradients are inside their tolerance"
    return Outcome.AGREES, words, words


def _innermost_modules(recording: Recording) -> list[str]:
    """Paths of modules without others below them, in order of their first call."""
    paths: dict[str, None] = {}
    for rank in recording.ranks.values():
        for step in rank.steps[:1]:
            paths.update(dict.fromkeys(call.site.module for call in rank.calls(step)))
    return [one for one in paths if one and not any(other.startswith(f"{one}.") for other in paths)]
