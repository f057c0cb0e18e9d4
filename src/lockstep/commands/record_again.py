"""Commands that record a training again, made from the command that a recording was made with."""

from __future__ import annotations

import dataclasses
import glob
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.core.errors import LockstepError
from lockstep.core.manifest import Options, RunManifest
from lockstep.core.records import Call, TensorRecord
from lockstep.core.redaction import REDACTED
from lockstep.core.secrets import MASK
from lockstep.core.selection import StepSelection
from lockstep.core.sizes import size_text
from lockstep.core.text import listed, shell_line
from lockstep.core.variables import VARIABLES
from lockstep.store.reader import Recording
from lockstep.store.script_variables import variables_read
from lockstep.store.urls import url_of

UNKNOWN = "..."
"""Stands for a command that was not kept."""


@dataclass(frozen=True, slots=True)
class RecordAgain:
    """A command that records a training once more.

    path: Where its recording goes, which is a new place.
    line: The command on one line, quoted for a shell.
    is_whole: Whether the training's own command was kept to its last word, so that the line can be pasted.
    training: The training's own command and the folder in which it runs: equal for two recordings that one command
        made.
    starts_from: The recording whose states it sets, None where it sets none: that comes first.
    unkept: Environment variables that the training's scripts read and whose values are not kept: whoever pastes the
        line sets them as they were.
    may_fail: Whether the line may end with another code than 0 and has recorded all the same: the training crashed, or
        it is a test of pytest, which takes being ended early for a failure.
    """

    path: Path
    line: str
    is_whole: bool
    training: tuple[str, str, Options, dict[str, str]]
    starts_from: Path | None = None
    may_fail: bool = False
    unkept: tuple[str, ...] = ()


def command_for_tensors(recording: Recording, calls: Sequence[Call]) -> str:
    """The command that records the sites of some calls with whole tensors."""
    steps = sorted({call.step for call in calls})
    only = sorted({pattern_for(call.site.module, call.site.op) for call in calls})
    return record_again(
        recording,
        only=only if len(only) <= _MOST_PATTERNS else (),
        steps=",".join(map(str, steps)),
    ).line


_MOST_PATTERNS = 4
"""Of more sites than this, all are recorded."""


def pattern_for(module: str, op: str) -> str:
    """The pattern of --only for a site: its module, or outside of all modules its operator."""
    return glob.escape(module or op)


def record_again(
    recording: Recording,
    *,
    only: Sequence[str] = (),
    steps: str,
    save: str = "tensors",
    seed: int | None = None,
    level: str = "",
    word: str = "whole",
    exit_after: bool = True,
    whole_bytes: int | None = None,
    compile_eager: bool = False,
    start_from: Path | None = None,
    windows: str = "",
) -> RecordAgain:
    """Return the command that records the missing parts of a recording, of the same training in the same way.

    Parameters
    ----------
    recording
        What was recorded.
    only, steps, save, seed
        As `lockstep record` takes them.
    level
        The same; as before where it is empty.
    word
        What the new recording is called by, behind the name of the old one.
    exit_after
        Whether the training ends after the last of the steps; where it ends by itself, its end is recorded too.
    whole_bytes
        With `save` "program": so much of whole tensors, where that is another size than by default.
    compile_eager
        Whether compiled code runs eagerly, even where it did not before.
    start_from
        For a training that was set to the states of a reference: the new recording of that, whose windows it takes;
        the old one where None.
    windows
        In the place of `steps`, windows that begin with a state; with `start_from`, those of that recording.
    """
    manifest = recording.manifest
    options = dataclasses.replace(
        manifest.options,
        level=level or manifest.options.level,
        compile_eager=compile_eager or manifest.options.compile_eager,
    )
    named = recording.new_beside
    path = new_place(named.with_name(f"{named.name}-{word}") if named.name else Path(word))
    folder = _other_folder(manifest)
    source = (start_from or Path(options.set_from)) if options.set_from else None
    source = start_from if windows else source
    words = ["record"]
    for pattern in only:
        words += ["--only", pattern]
    words += [
        "--save",
        save,
        *_which_steps(
            options,
            windows or steps,
            source if folder is None or source is None else source.absolute(),
            in_windows=bool(windows),
        ),
        *_kept_options(options, seed),
        *(["--exit-after"] if exit_after else []),
        *([] if whole_bytes is None else ["--whole-bytes", size_text(whole_bytes)]),
    ]
    words += ["-o", str(path if folder is None else path.absolute()), "--"]
    training = _training(manifest)
    environment = environment_of(recording)
    line = f"{_as_it_was(environment)}{command_line(*words)} {training}"
    known = not line.endswith(f" {UNKNOWN}") and MASK not in line
    return RecordAgain(
        path,
        line if folder is None else f"(cd {shell_line([folder])} && {line})",
        known,
        (training, manifest.cwd, _computing(manifest.options), environment),
        source,
        bool(manifest.exit_code) or _is_pytest(manifest.command),
        tuple(variables_read(_scripts(recording))),
    )


def _which_steps(
    options: Options, steps: str, source: Path | None, *, in_windows: bool
) -> list[str]:
    """The option that says which steps are recorded; of a training with windows each begins with a state."""
    if source is not None:
        return ["--start-from", str(source)]
    if in_windows:
        return ["--windows", steps]
    if not options.states_at:
        return ["--steps", steps]
    _, _, stride = StepSelection.parse(steps).ranges[0]
    return ["--windows", steps if stride == 1 else f"every={stride}"]


def command_again(recording: Recording, *words: str) -> str:
    """Return the line that runs a recording's training once more under a different verb, in its folder and
    environment.

    `words` are the verb and its options; a command that was not kept is called `COMMAND`.
    """
    training = _training(recording.manifest)
    training = "COMMAND" if training == UNKNOWN or MASK in training else training
    line = f"{_as_it_was(environment_of(recording))}{command_line(*words, '--')} {training}"
    folder = _other_folder(recording.manifest)
    return line if folder is None else f"(cd {shell_line([folder])} && {line})"


def environment_of(recording: Recording) -> dict[str, str]:
    """Return the variables that decide about numbers, as they were: those that all ranks had alike, none of a
    launcher's.
    """
    ranks = [rank.manifest.environment for rank in recording.ranks.values()]
    first = ranks[0] if ranks else {}
    left_out = {*VARIABLES["ranks"]}
    if recording.manifest.options.seed is not None:
        left_out |= _SET_BY_SEED
    return {
        name: value
        for name, value in first.items()
        if name not in left_out and all(rank.get(name) == value for rank in ranks)
    }


_SET_BY_SEED = {"PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"}


def _as_it_was(environment: dict[str, str]) -> str:
    """What goes in front of a command so that these variables are as they were, where this shell has others."""
    other = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    return "".join(f"{name}={shell_line([value])} " for name, value in other.items())


def _scripts(recording: Recording) -> set[str]:
    return {file for rank in recording.ranks.values() for file in rank.manifest.sources}


def _computing(options: Options) -> Options:
    """Options that change the numbers; of the others, the defaults."""
    return Options(
        seed=options.seed, emulate=options.emulate, compile_eager=options.compile_eager,
        calibrate=options.calibrate, no_shuffle=options.no_shuffle, no_dropout=options.no_dropout,
        set_from=options.set_from,
    )  # fmt: skip


def _is_pytest(command: Sequence[str]) -> bool:
    """Whether a command as `sys.argv` has it, or as it was typed, runs tests of pytest."""
    names = [Path(word).parent.name if Path(word).name == "__main__.py" else Path(word).name
             for word in command[:3]]  # fmt: skip
    return any(name in ("pytest", "py.test") for name in names)


def new_place(path: Path) -> Path:
    """The path, or one that is called like it, at which there is nothing."""
    number, place = 1, path
    while _is_taken(place):
        number += 1
        place = path.with_name(f"{path.name}-{number}")
    return place


def _is_taken(place: Path) -> bool:
    """Whether something is there; of object storage that cannot be asked, no."""
    url = url_of(place)
    if not url:
        return os.path.lexists(place)
    from lockstep.store.storage import Storage

    with suppress(LockstepError):
        return bool(Storage(url).names())
    return False


def new_folder_here(path: Path) -> Path:
    """A new folder beside a recording; of one in object storage, in this folder: what is written there is run here."""
    return new_place(Path(path.name) if url_of(path) else path)


def command_line(*words: object) -> str:
    """Return a command of Lockstep as it is typed in this shell, on one line and quoted: a verb and its arguments."""
    program = ["lockstep"] if shutil.which("lockstep") else [sys.executable, "-m", "lockstep"]
    return shell_line([*program, *map(str, words)])


def _kept_options(options: Options, seed: int | None) -> list[str]:
    """Options of a recording that change what is computed, or which sites there are."""
    seed = options.seed if seed is None else seed
    given = {"--level": options.level if options.level != "api" else "", "--ranks": options.ranks,
             "--inputs-of": options.inputs_of,
             "--emulate": options.emulate, "--seed": "" if seed is None else str(seed),
             "--max-steps": "" if options.max_steps is None else str(options.max_steps)}  # fmt: skip
    words = [word for name, value in given.items() if value for word in (name, value)]
    switches = {"--compile-eager": options.compile_eager, "--no-shuffle": options.no_shuffle,
                "--no-dropout": options.no_dropout}  # fmt: skip
    return [*words, *(name for name, given in switches.items() if given)]


def _training(manifest: RunManifest) -> str:
    """The training's command; of what was recorded from inside a script, the one that starts the script."""
    words = training_words(manifest)
    return UNKNOWN if words is None else shell_line(words)


def training_words(manifest: RunManifest) -> list[str] | None:
    """Return the words of the command that starts a recording's training once more; None where it was not kept."""
    command = manifest.command
    if not command or command == [REDACTED]:
        return None
    if manifest.exit_code is not None or not command[0].endswith(".py"):
        return None if command[0] in ("", "-c", "-m") else command
    module = _module_of(Path(command[0]))
    script = ["-m", module] if module else command[:1]
    python = "python" if shutil.which("python") else sys.executable
    return [python, *script, *command[1:]]


def _module_of(file: Path) -> str:
    """The package of a `__main__.py`, as `python -m` takes it; "" for any other file."""
    if file.name != "__main__.py":
        return ""
    names: list[str] = []
    for folder in file.parents:
        if not (folder / "__init__.py").is_file():
            break
        names.insert(0, folder.name)
    return ".".join(names)


def _other_folder(manifest: RunManifest) -> str | None:
    """The folder that the command was typed in, where that is here and another than this one."""
    folder = Path(manifest.cwd)
    try:
        here = not folder.is_absolute() or not folder.is_dir() or folder.samefile(Path())
    except OSError:  # no such name can be, as one of a megabyte
        return None
    return None if here else str(folder)


def caveats(recorded: Sequence[RecordAgain]) -> str:
    """What whoever pastes lines that record does first."""
    return _unkept_words(list(dict.fromkeys(name for one in recorded for name in one.unkept)))


def _unkept_words(names: Sequence[str]) -> str:
    """What whoever pastes a line sets first: variables that the script reads and a recording does not keep."""
    if not names:
        return ""
    was, them = ("it was", "it") if len(names) == 1 else ("they were", "them")
    return f" (set {listed(names)} as {was}: the script reads {them}, and a recording does not keep {them})"


def is_one_command(recorded: Sequence[RecordAgain]) -> bool:
    """Whether one command made both recordings."""
    return len(recorded) == 2 and recorded[0].training == recorded[1].training


def show_line(run: Recording, record: TensorRecord, pattern: object) -> str:
    """Return the command that shows what a run recorded of a pattern in a tensor's step, and in its rank alone."""
    return command_line("show", run.path, pattern, *where_options(run, record))


def where_options(run: Recording, record: TensorRecord | Call) -> list[object]:
    """The options that choose a step, and of several ranks one."""
    several = len(run.ranks) > 1 and record.rank in run.ranks
    return [
        "--steps",
        record.step,
        *(["--ranks", record.rank.removeprefix("rank")] if several else []),
    ]
