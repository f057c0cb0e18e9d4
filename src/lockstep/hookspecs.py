"""The extension points of the main job, and the one by which a wing adds its own.

A plug-in is a module or object that implements some of these functions with `@hookimpl` and is named by an entry point
in the group `lockstep`. The built-in ones are found in the same way.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from lockstep.core.devices import Device

if TYPE_CHECKING:  # those who migrate or record compare nothing, and load no arrays
    import click

    from lockstep.core.finding import Comparison
    from lockstep.core.manifest import NotSeen
    from lockstep.core.read_calls import ReadCall

NAME = "lockstep"
hookspec = pluggy.HookspecMarker(NAME)
"""Marks a function as an extension point of a wing's own, see `lockstep_add_hookspecs`."""
hookimpl = pluggy.HookimplMarker(NAME)
"""Marks a function of a plug-in that answers an extension point of the same name."""


class Task(str, enum.Enum):
    """The headings of `lockstep --help`, in their order: the user's tasks.

    A plug-in may give a heading of its own, which stands before the last of these.
    """

    START = "Start here"
    LOOK = "Look closer"
    PREPARE = "Before you train"
    TRAIN = "While it trains"
    TEST = "In CI"
    ADVICE = "Get advice"
    FASTER = "Make it faster"
    DEPLOY = "Export and serve"
    COMPATIBILITY = "Stand in for another tool"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line.

    Parameters
    ----------
    name
        As it is typed: `lockstep NAME ...`. Lockstep's own verbs cannot be replaced.
    summary
        One line of `lockstep --help`.
    group
        The heading that it stands under there: a `Task`, or words of the plug-in's own.
    load
        Gives the command; called when the verb is used, so that `--help` is quick. Its return value is the exit code,
        see `lockstep.core.errors`. A `lockstep.LockstepError` that it raises is said in one sentence.
    place
        Where it stands under its heading: verbs with a smaller number come first.
    guesses
        Words that people type when they mean this verb; `lockstep GUESS` then names it.
    """

    name: str
    summary: str
    group: str
    load: Callable[[], click.Command]
    place: int = 100
    guesses: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The heading as it is printed."""
        return self.group.value if isinstance(self.group, Task) else self.group


@dataclass(frozen=True, slots=True)
class ReportWriter:
    """One format that a comparison can be written in: `write(comparison, path)` raises `OSError` if it cannot."""

    name: str
    suffix: str
    write: Callable[[Comparison, Path], None]


@dataclass(frozen=True, slots=True)
class Reader:
    """A form of recordings that a different tool writes: opened wherever a recording is, on either side of
    `compare` too.

    Parameters
    ----------
    name
        The name of the form.
    recognises
        Whether a file or a folder has it, by a look at its content. Never asked of Lockstep's own recordings.
    read
        Gives its calls, those of each rank in order of time, one at a time, and a `NotSeen` for each thing that the
        form lacks or the tool left out, which a comparison then says; nothing that is read may be executed.
    read_by
        The same of a path whose names are built as a text says that the user gives (`--format NAME:TEXT`); None for a
        form that has names of its own.
    """

    name: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Iterable[ReadCall | NotSeen]]
    read_by: Callable[[Path, str], Iterable[ReadCall | NotSeen]] | None = None


@dataclass(frozen=True, slots=True)
class SupportList:
    """The operators that a release of a device's software can and cannot run.

    `lockstep ops --target TARGET` compares a training's operators with it; `lockstep migrate --to TARGET` lists each
    place in a script that names a missing one. Lists of one target, of whichever plug-in, are taken together.

    Parameters
    ----------
    target
        The name of the device.
    lacks
        Dotted names (`torch.linalg.eigh`, or `torch.fft.*`), each with the reason, or with a way around it.
    has
        Operators of the dispatcher (`aten::add.Tensor`, or `aten::add` for all overloads), each with the dtypes that it
        takes, none where that is not known. Operators that are not named are missing then.
    version, source
        Which release it is for, and where it is from.
    """

    target: str
    lacks: Mapping[str, str] = field(default_factory=dict)
    has: Mapping[str, Collection[str]] = field(default_factory=dict)
    version: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework other than PyTorch whose trainings `lockstep record` records.

    Parameters
    ----------
    name
        Its name.
    module
        Its root module: a process is armed right after that is imported, and imports nothing for it otherwise.
    arming
        The module, by its dotted name, whose `arm_from_environment()` arms the process, and which imports no torch.
    requirement
        The name that pip installs it by, with the needs of its recording; the root module's name by default.
    """

    name: str
    module: str
    arming: str
    requirement: str = ""


class Use(enum.Enum):
    """How a verb uses a path that you pass."""

    READS = enum.auto()
    WRITES = enum.auto()
    RECORDS = enum.auto()
    """It makes a recording there."""
    LIES = enum.auto()
    """It reads a recording, which lies on the machine that stands in front of it: `NAME:PATH`."""


@dataclass(frozen=True, slots=True)
class PathWord:
    """A word of a command line that is a path on this machine."""

    path: Path
    use: Use


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A verb's command line that is to run on a different machine (`--on NAME`).

    Parameters
    ----------
    machine
        Its name; "" for the one on which the largest of the paths lies that are `Use.LIES`.
    words
        The verb and its options.
    command
        The training's command, as it stands after `--`; empty for a verb that takes none.
    force
        Whether existing files are replaced where it writes.
    """

    machine: str
    words: tuple[str | PathWord, ...]
    command: tuple[str, ...]
    force: bool = False


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A model that a verb is given, in any form that `lockstep export` takes.

    Parameters
    ----------
    given
        `pkg.mod:function`, a checkpoint, a folder, a recording, or a .pt2.
    factory, weights, trusted
        The function that makes its module, which of two sorts of weights, and whether reading it may run its code.
    inputs, seed
        Files and texts of its inputs, and of drawn ones.
    """

    given: str
    factory: str | None = None
    weights: str = "auto"
    trusted: bool = False
    inputs: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its inputs.

    Parameters
    ----------
    name
        As it was given.
    module
        The `torch.nn.Module`, set to evaluation.
    inputs
        Its inputs: tensors by the names of its arguments, in their order.
    class_names
        The names of its classes; empty where they are not known.
    said
        The changes made to it, in a sentence each.
    """

    name: str
    module: Any
    inputs: Mapping[str, Any]
    class_names: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


@hookspec
def lockstep_commands() -> list[Verb]:  # type: ignore[empty-body]
    """Verbs of the command line."""


@hookspec
def lockstep_report_writers() -> list[ReportWriter]:  # type: ignore[empty-body]
    """Formats that `lockstep compare -o DIR` writes."""


@hookspec
def lockstep_readers() -> list[Reader]:  # type: ignore[empty-body]
    """Recordings of other tools, which every verb that reads recordings then takes."""


@hookspec
def lockstep_support_lists() -> list[SupportList]:  # type: ignore[empty-body]
    """Return lists of the operators that devices can and cannot run."""


@hookspec
def lockstep_devices() -> list[Device]:  # type: ignore[empty-body]
    """Return devices that a recording may name, beside those that Lockstep knows."""


@hookspec
def lockstep_frameworks() -> list[Framework]:  # type: ignore[empty-body]
    """Frameworks other than PyTorch that can be recorded."""


@hookspec(firstresult=True)
def lockstep_run_elsewhere(asked: Elsewhere) -> int | None:
    """Run a verb on a different machine, bring back the files that it writes, and return its exit code."""


@hookspec(firstresult=True)
def lockstep_load_model(asked: AskedModel) -> LoadedModel | None:
    """Load a model and its inputs, for verbs that run it."""


@hookspec(firstresult=True)
def lockstep_compare_models(
    reference: AskedModel, candidate: AskedModel, keep: Path | None
) -> Comparison | None:
    """Run two models on the same inputs, and compare them node by node; their recordings stay in `keep`."""


@hookspec(historic=True)
def lockstep_add_hookspecs(plugins: pluggy.PluginManager) -> None:
    """Add extension points of a wing's own, by `plugins.add_hookspecs`; called when the plug-in is registered."""
