"""Run a command whose modules are tested in its own process, and read what was found."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import ExitCode, UsageError, check_posix, code_of
from lockstep.launch import Command, environment_arming

VARIABLE = "LOCKSTEP_INVARIANCE"
_ARMING = f"{__package__}.arming"
_TO_ERROR = 2


@dataclass(frozen=True, slots=True)
class Request:
    """What the processes of a command are asked for.

    folder: Where they write.
    seed: Of random numbers.
    rows_axis: The axis of rows; None for the first one, if it is not the second that keeps rows apart.
    """

    folder: str
    seed: int
    rows_axis: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found of a command.

    models: What was found of each module, as data.
    not_tested: Which modules were not tested, with the reason.
    code: The command's own exit code.
    open: Which of these are further calls of a module that was tested, as those with a filled cache.
    """

    models: tuple[dict[str, Any], ...]
    not_tested: tuple[str, ...]
    code: int
    open: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """1 for a fault in a module, 2 where one or some of its calls could not be judged, or none was tested."""
        verdicts = {one["verdict"] for one in self.models}
        return code_of(
            differs=ExitCode.DIFFERS.name.lower() in verdicts,
            looked=verdicts == {ExitCode.AGREES.name.lower()} and not self.open,
        )

    @property
    def headline(self) -> str:
        """The verdict of the module that matters most."""
        if not self.models:
            why = "; ".join(self.not_tested) or "it called no module of torch with two rows or more"
            return f"nothing was tested: {why} (the command ended with exit code {self.code})"
        order = [ExitCode.DIFFERS, ExitCode.FAILED, ExitCode.AGREES]
        names = [one.name.lower() for one in order]
        worst = min(self.models, key=lambda one: names.index(one["verdict"]))
        left = f"; not tested: {self.open[0]}" if self.open else ""
        return f"{_title(worst)}: {worst['headline']}{left}"


def run_command(command: Sequence[str], *, seed: int, rows_axis: int | None) -> Answer:
    """Run a command until its modules are tested; what it prints goes to standard error.

    Raises UsageError if it cannot be started.
    """
    check_posix("running a command")
    with tempfile.TemporaryDirectory(prefix="lockstep-invariance-") as folder:
        request = Request(folder, seed, rows_axis)
        environment = environment_arming(_ARMING) | {VARIABLE: json.dumps(asdict(request))}
        try:
            process = Command(list(command), environment, stdout=_TO_ERROR)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"{command[0]}: the command cannot be started ({reason})") from error
        return _answer(Path(folder), process.wait())


def written_by(folder: Path, process: int) -> Path:
    """Return the file of a process."""
    return folder / f"{process}.jsonl"


def _answer(folder: Path, code: int) -> Answer:
    """Ranks of one training say the same of the same module: that is said once."""
    lines = [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    found = [json.loads(line) for line in dict.fromkeys(lines)]
    models = [one for one in found if "not_tested" not in one]
    tested = {_key(one) for one in models}
    modules = {key[:2] for key in tested}
    rest = {
        f"{_title(one)}: {one['not_tested']}": one["after_earlier_calls"]
        for one in found
        if "not_tested" in one
        and _key(one) not in tested
        and (one["after_earlier_calls"] or _key(one)[:2] not in modules)
    }
    still_open = tuple(said for said, is_further in rest.items() if is_further)
    return Answer(tuple(models), tuple(rest), code, still_open)


def _key(one: dict[str, Any]) -> tuple[str, int, bool]:
    return one["model"], one["number"], one["after_earlier_calls"]


def _title(one: dict[str, Any]) -> str:
    path = Path(one["file"])
    file = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path
    mode = "training" if one["is_training"] else "evaluation"
    state = ", after earlier calls" if one["after_earlier_calls"] else ""
    return f"{one['model']} ({file}:{one['line']}, {mode} mode{state})"


def text_of_answer(answer: Answer) -> str:
    """The answer, for a person."""
    lines = [f"{_title(one)}: {one['text']}" for one in answer.models] or [answer.headline]
    if answer.models:
        lines += [f"not tested: {one}" for one in answer.not_tested]
        lines.append(
            "not seen: what the script computes outside of these modules, and their further calls"
        )
    return "\n".join(lines)


def json_of_answer(answer: Answer) -> dict[str, Any]:
    """The answer as data."""
    models = [{key: one[key] for key in one if key != "text"} for one in answer.models]
    return {
        "verdict": answer.exit_code.name.lower(),
        "headline": answer.headline,
        "models": models,
        "not_tested": list(answer.not_tested),
        "command_exit_code": answer.code,
    }


__all__ = ["Answer", "Request", "json_of_answer", "run_command", "text_of_answer", "written_by"]
