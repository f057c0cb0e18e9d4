"""The options that several verbs share: one name, one type, one meaning. `OPTIONS` is the table.

A verb takes a row of the table with `@option("--steps", default="0:2")`. An option that only one verb has stands at
that verb, as `click.option` makes it; its name must not be in the table. `tests/cli/test_options.py` walks all verbs,
those of plug-ins too, and compares each with the table.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from lockstep.cli.sentences import say
from lockstep.core.arguments import LEAST_MEMORY_BYTES, MOST_SEED
from lockstep.core.errors import UsageError
from lockstep.core.manifest import MEMORY_BYTES
from lockstep.core.selection import LEVELS, SAVES
from lockstep.core.sizes import bytes_of

F = TypeVar("F", bound=Callable[..., Any])


class AddOption(Protocol):
    """A decorator that adds an option to a verb."""

    def __call__(self, function: F, /) -> F:
        """Return the same function."""
        ...


# -- types


class _GivenPath(click.Path):
    """A path. An empty one, as an unset variable leaves it, would be the current folder, which nobody asked for."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if not os.fspath(value):
            name = param.get_error_hint(ctx) if param is not None and ctx is not None else "PATH"
            raise UsageError(f"{name}: is empty; give a path, or . for the current folder")
        return super().convert(value, param, ctx)


PATH = _GivenPath(path_type=Path)
"""The type of an argument or option that is a path, not empty."""


class _PathHere(_GivenPath):
    """A path on this machine; an address of object storage would become a folder named `s3:`."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if ":/" not in os.fsdecode(value):
            return super().convert(value, param, ctx)
        from lockstep.store.urls import url_of  # loads polars, which most verbs do without

        if url := url_of(value):
            name = param.get_error_hint(ctx) if param is not None and ctx is not None else "PATH"
            raise UsageError(
                f"{name}: {url} is in object storage, and Lockstep writes this to this machine alone; give a path"
                f" here, then: lockstep copy FOLDER {url}"
            )
        return super().convert(value, param, ctx)


PATH_HERE = _PathHere(path_type=Path)
"""The type of an option that is a path to write to, and no address of object storage."""


class Size(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """Bytes, as in `512MB` or `8GiB`."""

    name = "SIZE"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        """Return the number of bytes."""
        try:
            number = int(value) if isinstance(value, str) and value.isdecimal() else value
            return bytes_of("the size", number, least=self.least)
        except UsageError as error:
            self.fail(str(error), parameter, context)


class Budget(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """Time that something may take; a verb takes one of its forms."""

    name = "BUDGET"


class Share(Budget):
    """A share, as in `20%` or `0.2`."""

    name = "SHARE"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        """Return a number above 0 and at most 1."""
        text = str(value)
        try:
            share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
        except ValueError:
            share = 0.0
        if not 0.0 < share <= 1.0:
            self.fail(f"{text!r} is not a share; write 20% or 0.2", parameter, context)
        return share


class Duration(Budget):
    """Seconds, as in `90s`, `30m` or `2h`."""

    name = "TIME"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        """Return the seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(value))
        if found is None:
            self.fail(f"{value!r} is not a time; write 90s, 30m or 2h", parameter, context)
        return float(found[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]


# -- spellings of earlier releases


class Option(click.Option):
    """An option that still takes its spellings of the last release; `--help` does not show those.

    Parameters
    ----------
    old
        These spellings. Each prints one line on standard error that names the new one.
    """

    def __init__(self, *arguments: Any, old: Iterable[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.old = tuple(old)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add the option, and its old spellings under names of their own."""
        super().add_to_parser(parser, ctx)
        action = "append" if self.multiple else "store"
        for spelling in self.old:
            how = (
                {"action": "store_const", "const": True}
                if self.is_flag
                else {"action": action, "nargs": self.nargs}
            )
            parser.add_option(obj=self, opts=[spelling], dest=self._kept_as(spelling), **how)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        """Take the value from whichever spelling was typed."""
        for spelling in self.old:
            typed = opts.get(self._kept_as(spelling))
            if typed is None:
                continue
            new = max(self.opts, key=len)
            if not ctx.resilient_parsing:
                say(f"{spelling} is called {new}; the old name goes with the next release")
            given = opts.get(self.name or "")
            both = [*(given or ()), *typed] if self.multiple else typed
            opts = {**opts, self.name or "": both}
        return super().consume_value(ctx, opts)

    def _kept_as(self, spelling: str) -> str:
        return f"{self.name} as {spelling}"


# -- the table


class Default(enum.Enum):
    """Marks an option of the table whose default each verb sets for itself."""

    OF_THE_VERB = enum.auto()


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of one option, the same in every verb.

    words: The help of every verb begins with them.
    type: Of its value; None for a switch. A verb may take fewer of several choices.
    default: Of every verb.
    metavar: What stands for the value in the help.
    short: A second, short name.
    """

    words: str
    type: Any = None
    default: object = None
    metavar: str | None = None
    short: str | None = None


OPTIONS: dict[str, Meaning] = {
    # which part of a training
    "--steps": Meaning("Take these steps: 0, 0:3 (0 to 2), 10,20 or 0::10 (each tenth).", str, Default.OF_THE_VERB),
    "--every": Meaning("Take only each N-th step.", click.IntRange(min=1), 1),
    "--max-steps": Meaning("End the training after N steps.", click.IntRange(min=1), Default.OF_THE_VERB, "N"),
    "--ranks": Meaning("Take only these ranks, as in 0 or 0,2.  [default: all]", str, ""),
    "--only": Meaning(
        "Take only these module paths or operators; * and ? match as in a shell. Repeatable.", str,
        metavar="PATTERN",
    ),
    "--level": Meaning(
        "How deep to look: modules alone, or also functions of PyTorch (api).", click.Choice(LEVELS), "api"
    ),
    "--save": Meaning(
        "Keep this much of each tensor: statistics, also a sketch for distances, of what no call makes all numbers"
        " (program), or all numbers.",
        click.Choice(SAVES), Default.OF_THE_VERB,
    ),
    # what a recording is compared with, and how
    "--judge": Meaning("Judge by an error model of each operator, or by fixed thresholds.",
                       click.Choice(["error-model", "fixed"]), "error-model"),
    "--noise": Meaning(
        "Measure noise from this second recording of the reference's training. Repeatable.", PATH
    ),
    "--dims": Meaning(
        "If ranks hold parts of tensors, put them together first: a YAML file that names the axes, as in"
        " `b s h[tp] d`. Pass it twice, for reference and candidate, if the two differ.", PATH,
    ),
    "--calibration": Meaning("Take tolerances from this `lockstep record --calibrate` of the reference.", PATH),
    "--inputs-of": Meaning(
        "Give each module the inputs that this recording (--save tensors) has, so that each is judged by itself.", PATH,
    ),
    "--mapping": Meaning("Read names that differ between the two runs from this YAML file.", PATH),
    "--no-rerun": Meaning("Run no operator again."),
    "--allow-crash": Meaning("Let a training that crashed agree if its recorded steps do."),
    "--format": Meaning(
        "Read a dump of another tool in this form. NAMES is the pattern of its names, as in"
        " 'tensors:{module}.{op}.{role}.{index}'.", str, Default.OF_THE_VERB, "NAME[:NAMES]",
    ),
    # what is run
    "--device": Meaning("Run on this device, as in cpu or cuda:0.", str, Default.OF_THE_VERB, "DEVICE"),
    "--emulate": Meaning("Compute as this device would; `record --emulate help` lists them.", str, "", "DEVICE"),
    "--repeat": Meaning("Run N times.", click.IntRange(min=1), Default.OF_THE_VERB, "N"),
    "--threads": Meaning(
        "Use this many threads for one run; 0 lets the runtime choose.", click.IntRange(min=0), Default.OF_THE_VERB
    ),
    "--seed": Meaning("Draw random numbers from this seed.", click.IntRange(0, MOST_SEED), Default.OF_THE_VERB),
    "--inputs": Meaning(
        "Run the model on these inputs: a .npz, .npy or .safetensors file, or a shape to draw, such as"
        " x:float32[1,3,32,32] or ids:int64[2,16]<1000. Repeatable.", str, metavar="FILE|SPEC",
    ),
    "--config": Meaning("Search what configuration files say.", PATH, Default.OF_THE_VERB, "FILE"),
    "--factory": Meaning(
        "For a checkpoint or a recording: call this function to make the module.", str, metavar="PKG.MOD:FUNCTION"
    ),
    "--weights": Meaning("If a checkpoint has plain and averaged (ema) weights, take these.",
                         click.Choice(["auto", "ema", "plain"]), "auto"),
    "--trust": Meaning("Also read a checkpoint that holds objects besides weights. This runs its code."),
    "--against": Meaning("Compare with this.", PATH),
    "--session": Meaning(
        "Set an entry of onnxruntime's session configuration. Repeatable.", str, metavar="KEY=VALUE"
    ),
    "--optimize": Meaning("Let the runtime rewrite the graph up to this level.",
                          click.Choice(["none", "basic", "extended", "layout", "all"]), "all"),
    "--rules": Meaning("Add the rules in this file.", PATH, metavar="FILE"),
    "--accept": Meaning("Allow results to be worse by this much.", click.FloatRange(0), metavar="NUMBER"),
    "--env": Meaning("Set a variable of the environment.", str, metavar="NAME=VALUE"),
    "--engine": Meaning("Compute on this machine, or on a Ray cluster.",
                        click.Choice(["embedded", "local", "ray"]), Default.OF_THE_VERB),
    "--cluster": Meaning(
        "Use the Ray cluster at this address.  [default: start one here]", str, Default.OF_THE_VERB, "HOST:PORT"
    ),
    "--python": Meaning("Run with this Python.", str, Default.OF_THE_VERB, metavar="PYTHON"),
    "--on": Meaning(
        "Run on this machine of `lockstep remote add`, or as a job, as in slurm:partition=gpu.", str, metavar="NAME"
    ),
    # what it may cost
    "--memory": Meaning("Use at most this much memory, as in 8GB.", Size(LEAST_MEMORY_BYTES), Default.OF_THE_VERB),
    "--budget": Meaning("Use at most this much time:", Budget(), Default.OF_THE_VERB),
    "--timeout": Meaning(
        "End one run after this many seconds.", click.FloatRange(min=0.001), Default.OF_THE_VERB, "SECONDS"
    ),
    # where the answer goes
    "--output": Meaning("Write to this path.", PATH_HERE, Default.OF_THE_VERB, short="-o"),
    "--force": Meaning("Replace existing files."),
    "--keep": Meaning("Keep the recordings in this folder.", PATH_HERE, metavar="DIR"),
    "--tensorboard": Meaning("Write TensorBoard event files into this folder.", PATH_HERE, metavar="DIR"),
    "--json": Meaning("Print the answer as JSON."),
    "--limit": Meaning("Print at most N rows.", click.IntRange(min=1), 20, "N"),
    "--all": Meaning("Print every row."),
}  # fmt: skip
"""Every option that two verbs or more take, by its long name."""


def option(
    name: str,
    parameter: str | None = None,
    *,
    words: str = "",
    default: object = None,
    choices: Iterable[str] = (),
    form: Budget | _GivenPath | None = None,
    old: Iterable[str] = (),
    **settings: Any,
) -> AddOption:
    """Return the decorator that gives a verb an option of the table.

    Parameters
    ----------
    name
        Its long name.
    parameter
        The name of the verb's argument; made from `name` where left out.
    words
        A sentence that follows those of the table: how this verb uses it.
    default
        Where the table leaves it to the verb.
    choices
        Where the verb takes fewer than the table has.
    form
        Which form of it the verb takes, where the table leaves that to the verb; `PATH` for an `--output` that may be
        an address of object storage.
    old
        Spellings of the last release.
    settings
        More for `click.option`: `multiple`, `required`, `callback`.
    """
    meaning = OPTIONS[name]
    names = [one for one in (meaning.short, name, parameter) if one is not None]
    settings["help"] = " ".join(filter(None, (meaning.words, words)))
    if meaning.type is None:
        return click.option(*names, cls=Option, old=old, is_flag=True, **settings)
    known = default if meaning.default is Default.OF_THE_VERB else meaning.default
    if not settings.get("multiple"):
        settings.setdefault("show_default", known not in (None, ""))
        if known is not None or not settings.get(
            "required"
        ):  # None would answer for what is left out
            settings["default"] = known
    kind = click.Choice(list(choices)) if choices else form or meaning.type
    return click.option(*names, cls=Option, old=old, type=kind, metavar=meaning.metavar, **settings)


as_json = option("--json", "as_json")
"""Gives a verb `--json`, as the argument `as_json`."""
force = option("--force")
"""Gives a verb `--force`: it may replace existing files where it writes."""
allow_crash = option("--allow-crash")
"""Gives a verb `--allow-crash`: a training that crashed may agree in what was recorded of it."""
limit = option("--limit")
"""Gives a verb `--limit`: how many rows it shows."""
ranks = option("--ranks", old=["--rank"])
"""Gives a verb `--ranks`: the ranks that it takes."""
only = option("--only", multiple=True)
inputs_of = option("--inputs-of")
form = option("--format", "form", default="")
"""Gives a verb `--format`, as the argument `form`: of which tool its recording is."""
forms = option(
    "--format", "forms", multiple=True,
    words="Pass it twice, for reference and candidate, if the two differ.",
)  # fmt: skip
"""Gives a verb `--format`, once or twice, as the argument `forms`: of which tool its recordings are."""


def memory(
    words: str = "", *, default: int | None = MEMORY_BYTES, default_words: str = "1GiB"
) -> AddOption:
    """Return `--memory` with the default that recording has; `words` describe the effect of the limit."""
    return option(
        "--memory", "memory_bytes", words=f"{words}  [default: {default_words}]", default=default,
        show_default=False, old=["--memory-bytes"],
    )  # fmt: skip


def disagreements(command: click.Command) -> list[str]:
    """Return where the options of a verb are other than the table has them, a sentence each."""
    found = []
    for one in command.params:
        if not isinstance(one, click.Option):
            continue
        name = max(one.opts, key=len)
        meaning = OPTIONS.get(name)
        if meaning is None:
            shorts = {row.short: long for long, row in OPTIONS.items() if row.short}
            found += [
                f"{short} is {shorts[short]}, not {name}" for short in one.opts if short in shorts
            ]
            continue
        is_switch = meaning.type is None
        pairs = {
            "short name": (set(one.opts), {name, *([meaning.short] if meaning.short else [])}),
            "switch": (one.is_flag, is_switch),
            "type": (
                is_switch or (Budget.name if isinstance(one.type, Budget) else one.type.name),
                is_switch or click.types.convert_type(meaning.type).name,
            ),
            "metavar": (one.metavar, meaning.metavar),
            "words": ((one.help or "")[: len(meaning.words)], meaning.words),
        }
        if isinstance(meaning.type, click.Choice) and isinstance(one.type, click.Choice):
            pairs["choices"] = set(one.type.choices) - set(meaning.type.choices), set[str]()
        if not (is_switch or one.multiple or meaning.default is Default.OF_THE_VERB):
            pairs["default"] = one.default, meaning.default
        found += [
            f"{name}: {what} {here!r}, in the table {there!r}"
            for what, (here, there) in pairs.items()
            if here != there
        ]
    return found


def thinned(steps: str, every: int) -> str:
    """Return `--steps` with `--every`: a selection of each N-th step.

    Raises
    ------
    UsageError
        If the steps are no range.
    """
    if every == 1:
        return steps
    if "," in steps or steps.count(":") != 1:
        raise UsageError(f"--steps {steps} with --every {every}: give one range, as in 0:1000")
    return f"{steps}:{every}"


def recording_at(path: Path | None) -> str:
    """Return the absolute path of a recording that can be opened, "" for None."""
    from lockstep.store.reader import (
        open_recording,
    )  # loads polars, which most commands do not need

    return "" if path is None else str(open_recording(path).path.absolute())
