"""The set-up of a run, as typed records that go to and come from JSON."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from lockstep.core.errors import CorruptError
from lockstep.core.windows import GivenInput, WindowStart

MEMORY_BYTES = 1 << 30
"""Memory that recording may take by default."""

WHOLE_BYTES = 2_000_000_000
"""Bytes of whole tensors that a rank keeps with `--save program` by default."""


@dataclass(slots=True)
class Options:
    """The options of the recorder; see `lockstep record --help`."""

    steps: str = "0:2"
    ranks: str = ""
    level: str = "api"
    save: str = "sketch"
    only: list[str] = field(default_factory=list)
    skip: list[str] = field(default_factory=list)
    max_bytes: int | None = None
    seed: int | None = None
    exit_after: bool = False
    emulate: str = ""
    calibrate: bool = False
    memory_bytes: int = MEMORY_BYTES
    compile_eager: bool = False
    redact: bool = False
    apart: bool = False
    """Each step becomes a rank's directory of its own, and goes once somebody has looked at it."""
    apart_steps: int = 1
    """So many of a process may lie there; while they do, no more is recorded."""
    apart_waits: bool = False
    """Rather than that, the training waits."""
    apart_share: float | None = None
    """Share of the training's time that recording steps may take, behind the first; None for as much as it takes."""
    no_shuffle: bool = False
    no_dropout: bool = False
    max_steps: int | None = None
    optimizer_state: bool = True
    """Whether an optimizer's state is recorded beside its parameters."""
    sketch_parameters: bool = False
    """With `save` "stats", parameters have sketches all the same, so that the size of an update is known."""
    finite_alone: bool = False
    """With `save` "stats", of a large tensor that is finite nothing is taken but its norm: no digest, no range."""
    ends_when_asked: bool = False
    """Whoever follows the training may ask it to end, see `lockstep.following.last_step`."""
    until_losses_part: bool = False
    """Only losses are heard, until one is further off than it may be: then a step is recorded, see
    `lockstep.following.followed_losses`."""
    places: bool = False
    """Each process of a group of ranks notes where it is, see `lockstep.capture.command.rank_places`."""
    before_backward: bool = False
    """Every process ends before its first backward: what it is set up by is known by then."""
    loads: list[str] = field(default_factory=list)
    """Modules that each process loads after torch, before it is recorded; their `begin(recorder)` is called then."""
    whole_bytes: int = WHOLE_BYTES
    """With `save` "program": so many bytes of whole tensors are kept of a rank."""
    records_nothing: bool = False
    """Steps are counted, and none is recorded: `loads` has something else to do with them."""
    states_at: str = ""
    """Steps at whose start the whole state is kept, or is set where `set_from` names a recording; "" for none."""
    set_from: str = ""
    """The recording whose states are set at these steps."""
    step_log: bool = False
    """A small row is kept of each step, recorded or not, see `lockstep.store.step_log`."""
    inputs_of: str = ""
    """The recording whose inputs are given to modules; "" for none."""
    course_of: str = ""
    """The recording of this training's windows, whose states are another's; this one is its own course."""


@dataclass(slots=True)
class RunManifest:
    """The command as a whole: `manifest.json` at the top of a recording.

    `not_seen` tells of processes that trained and are in no rank's directory.
    """

    schema: int
    version: str
    created: str
    command: list[str]
    cwd: str
    options: Options
    git: dict[str, str] = field(default_factory=dict)
    state: str = "recording"
    exit_code: int | None = None
    not_seen: list[NotSeen] = field(default_factory=list)


@dataclass(slots=True)
class NumberRead:
    """A number that Python was given, and the content of the tensor that held it."""

    number: float
    content: int


@dataclass(slots=True)
class StepSummary:
    """One recorded step.

    `skipped` tells that the gradient scaler left the optimizer out, `loss_scale` is that scaler's factor, None where
    there is none.

    Counts of what its calls do not show are None where nobody counted: earlier builds, other frameworks, and of reads
    `--level module`. `autograd_grad_calls` are those of `torch.autograd.grad` that are not recorded as calls, as
    earlier builds recorded none; `create_graph_calls` are further runs of autograd with `create_graph=True`.
    `float_reads` is how often Python took numbers out of a floating-point tensor (`item`, `tolist`, `numpy`, `float`)
    before the step's last backward, `float_reads_after_backward` behind it, as a log does; `decision_reads` how often
    out of one of whole numbers or booleans, as `if` does. Optimizers' own reads do not count. `numbers_read` are the
    last single numbers that Python was given (`item`, `float`), finite and not whole.
    """

    index: int
    complete: bool = False
    skipped: bool = False
    calls: int = 0
    loss_scale: float | None = None
    autograd_grad_calls: int | None = None
    create_graph_calls: int | None = None
    float_reads: int | None = None
    float_reads_after_backward: int | None = None
    decision_reads: int | None = None
    numbers_read: list[NumberRead] = field(default_factory=list)


MOST_NUMBERS_READ = 16
"""How many `numbers_read` a step keeps: a script that makes arguments of numbers reads a few."""

OTHER_TRAININGS = "trainings of other threads"
"""What is not seen where several threads of a process train."""

BEFORE_BACKWARD = "lockstep check, before its first backward"
"""What ended a process that was to be looked at before it computes anything."""

EXIT_AFTER = "--exit-after"
"""What ended a process that was to end once its chosen steps were recorded."""

MAX_STEPS = "--max-steps"
"""What ended a process that was to train no more steps than these."""

FOLLOWER = "who follows it"

DEFAULT_RNG = "numpy.random.default_rng"
"""All generators that this function made, in `unseeded` and `random_states`."""


def was_asked_to_end(ended_by: str) -> bool:
    """Return whether Lockstep itself ended a process, as it was asked to: that is no crash."""
    return ended_by in (BEFORE_BACKWARD, EXIT_AFTER, FOLLOWER) or ended_by.startswith(MAX_STEPS)


def ended_itself(ended_by: str, code: int | None) -> bool:
    """Return whether a process ended itself without a failure; earlier builds tell no code of `os._exit`."""
    left = ended_by == "os._exit(0)" or (ended_by == "os._exit" and code == 0)
    return left or ended_by.startswith("os.exec")


MODULES = "modules"
"""A gap: another tool tells every operator outside of the modules that call it."""

OPERATORS = "single operators"
"""What is not seen where another tool tells modules alone; the reason begins with how that is said of a place."""

ORDER = "the order of the calls"
"""A gap: another tool's names tell no time: nothing comes before anything then."""

ARGUMENTS = "settings of calls"
"""A gap: another tool tells no plain arguments. such a call cannot be made again."""

NESTING = "which call holds which"
"""A gap: another tool's names tell no calls around a call."""

APART = "parts of tensors"
"""What is not seen where ranks' parts of one tensor could not be put together: it is not compared."""

CONTRADICTIONS = "files that contradict their names"
"""What is not seen where another tool's file says in itself that it is of something else: such dumps never agree."""

LEFT_OUT = "what the other tool left out"
"""What is not seen in a recording that was read from a different tool's files: no more can be said of it than that."""

PUT_TOGETHER = "how it was made"
"""The same of a recording that was put together of several."""

TOKENS = "lockstep.tokens"
"""Not missing: the operator of a call that tells which tokens the model is given next."""

BY_TOKENS = "what depends on how many tokens come at once"
"""What is not seen where calls of a few tokens each were put together: caches that grow, masks, and other kernels."""

COMPILED_BY_XLA = "what XLA compiles"
"""What is not seen where a function of another framework is compiled as a whole."""

INNER_BACKWARD = "the backward of single operators in inner functions and loops"
"""What is not seen where TensorFlow differentiates a graph as a whole."""

REWRITTEN = "what Grappler rewrites in graphs"
"""What is not seen where TensorFlow takes other operators than the code names."""

END = "the end of the training"
"""What is not seen where states at the end could not be taken or written."""

PART = "a part of the recording"
"""What is not seen where not all files of a recording could be brought to this machine: it never agrees."""

SOURCES_LEFT_OUT, BATCHES_LEFT_OUT = "sources of the program", "batches"
"""What is not kept whole with `--save program`: beyond the size that was given, and with `--redact`."""

STATE = "the state at the start of step "
"""What is not seen where it could not be kept, before the step."""

GIVEN_INPUTS = "inputs of a reference, given to modules"
"""A `NotSeen` of this says why modules were given none."""

STEP_LOG = "the step log from step "
"""What is not seen where no more rows could be written, before the step."""

HELD = "what variables of the script lead to"
"""What is not seen where some of it could not be looked at when the training ended."""


INSIDE = "inside of "
"""What is not seen of something compiled, before its name."""

AT_BOUNDARY = "compiled: recorded at its boundary only"
"""Why the inside of something compiled is not seen."""

IN_TRANSFORMS = "operators inside of torch.func transforms"
"""What is not seen there, as tensors have no numbers."""

GATHERED, IN_FLAT_PARAMETERS, OF_OTHER_RANKS = (
    "how parameters are gathered and gradients reduced",
    "gradients between backward and the optimizer",
    "updates of what other ranks own",
)
"""What is not seen of FSDP2, FSDP1 and ZeroRedundancyOptimizer, under which ranks hold parts of one model."""


@dataclass(slots=True)
class NotSeen:
    """Something that happened but was not recorded, and why; `level` is that of the other tool that left it out.

    `whole_bytes` is how much of whole tensors `--save program` would keep of the rank without a limit, where it did
    not keep all.
    """

    what: str
    reason: str
    count: int = 1
    level: str = ""
    whole_bytes: int | None = None

    @property
    def compiled(self) -> str:
        """The compiled code that is recorded at its boundary alone; "" if this is about something else."""
        is_compiled = self.what.startswith(INSIDE) and self.reason.startswith(AT_BOUNDARY)
        return self.what.removeprefix(INSIDE) if is_compiled else ""

    @property
    def hides_operators(self) -> bool:
        """Whether operators ran there."""
        return self.what.startswith(INSIDE) or self.what in (IN_TRANSFORMS, OTHER_TRAININGS)

    @property
    def parts_a_model(self) -> bool:
        """Whether each rank holds a part of the model."""
        return self.what in (GATHERED, IN_FLAT_PARAMETERS, OF_OTHER_RANKS)


@dataclass(slots=True)
class Event:
    """Something worth knowing that is not a fault: a loss-scale skip, a compiled region, a second backward."""

    kind: str
    step: int
    detail: str


@dataclass(slots=True)
class OptimizerSetup:
    """One optimizer: its class and the hyper-parameters of every group, at one step.

    `parameters` are the names of each group's parameters; they stand at the first recorded step of an optimizer and
    wherever they are others than before, and are empty elsewhere.
    """

    index: int
    step: int
    name: str
    groups: list[dict[str, Any]] = field(default_factory=list)
    parameters: list[list[str]] = field(default_factory=list)


@dataclass(slots=True)
class LoaderSetup:
    """One data loader that the training iterates, and how it draws batches, at one step.

    It stands at the first recorded step and wherever it is set up otherwise than before, as by `set_epoch`.
    """

    index: int
    step: int
    name: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class RankManifest:
    """One training process: `rank0/manifest.json`.

    `unmatched` holds the patterns of --only and --skip that matched nothing, with the nearest names; `sources` the
    files of Python that were loaded when the first recorded step began, links resolved, installed packages left out.
    `trainable` tells of every parameter by its name whether it required a gradient in the first recorded step that it
    was met in; `tied` gives, for a second name of one and the same parameter or buffer, the name that it is recorded
    under. Earlier builds noted neither, and leave `trainable` empty. `random_states` are digests of what the generators
    of Python, NumPy and torch were at as the first recorded step began; earlier builds leave them empty, and `loaders`.
    `trained` counts the steps of the whole training, as far as it is known: not where it was killed, nor those that a
    compiled optimizer took behind the recorded ones. `ended_by` says what ended the process before its recording was
    done: an exception that nobody caught, `os._exit(3)`, a signal that it sent itself, an option of Lockstep.
    `lineage` tells which child of its parent the process was, see `lockstep.capture.process.lineage`; earlier builds
    leave it empty. `files` holds length and digest of every file beside the manifest, see
    `lockstep.store.integrity`. `asked` is what `lockstep record` was asked to change of the training: no shuffling,
    no dropout, its length; empty where it is as it would be alone.
    `configuration` is what arguments and settings were resolved to, by where they come from; empty where that is not
    known, and with `--redact`.
    `libraries` has versions of the libraries that the script's own files import, `variables` the environment variables
    that these files read, `settings_files` the settings in files that `configuration` names, see
    `lockstep.core.script_inputs`; earlier builds have none of them, and with `--redact` there are libraries alone.
    `wrappers` are the options of DistributedDataParallel and FSDP. `unseeded` names the generators that nobody had
    seeded when the first recorded step began: torch's, and those of "python", "numpy" and `DEFAULT_RNG` that something
    was drawn from by then. Empty where that is not known, as in earlier builds. `autocast_policies` have, by device
    type, what autocast computes operators in there, where it was on and torch could tell. `windows` are those that
    began with a state that was kept or set, `given_inputs` the inputs of modules that are a reference's.
    """

    schema: int
    rank: str
    world_size: int
    pid: int
    argv: list[str]
    python: str
    state: str = "recording"
    stopped_because: str = ""
    ended_by: str = ""
    platform: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    numerics: dict[str, str] = field(default_factory=dict)
    seeds: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    configuration: dict[str, dict[str, Any]] = field(default_factory=dict)
    wrappers: dict[str, str] = field(default_factory=dict)
    mixed_precision: dict[str, str] = field(default_factory=dict)
    autocast_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    distributed: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    optimizers: list[OptimizerSetup] = field(default_factory=list)
    loaders: list[LoaderSetup] = field(default_factory=list)
    random_states: dict[str, str] = field(default_factory=dict)
    unseeded: list[str] = field(default_factory=list)
    trainable: dict[str, bool] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    steps: list[StepSummary] = field(default_factory=list)
    trained: int | None = None
    unmatched: dict[str, list[str]] = field(default_factory=dict)
    not_seen: list[NotSeen] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    libraries: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    settings_files: dict[str, dict[str, Any]] = field(default_factory=dict)
    windows: list[WindowStart] = field(default_factory=list)
    given_inputs: list[GivenInput] = field(default_factory=list)
    lineage: str = ""
    files: dict[str, str] = field(default_factory=dict)


M = TypeVar("M")


def manifest_from_json(kind: type[M], value: Any, where: str) -> M:
    """Build a manifest dataclass from decoded JSON, checking every field's type.

    Unknown keys are ignored, so that older versions read what newer ones add.

    Raises
    ------
    CorruptError
        If a field is missing or has another type; the message names it.
    """
    return typing.cast(M, _decoded(kind, value, where))


def _decoded(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decoded_dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is list and isinstance(value, list):
        return [
            _decoded(arguments[0], item, f"{where}[{number}]") for number, item in enumerate(value)
        ]
    if origin is dict and isinstance(value, dict):
        return {
            str(key): _decoded(arguments[1], item, f"{where}.{key}") for key, item in value.items()
        }
    if type(None) in arguments and (value is None or type(value) in arguments):
        return value
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise CorruptError(where, f"unexpected value {value!r:.80}")


def _decoded_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise CorruptError(where, "not a JSON object")
    hints = _hints(kind)
    decoded = {}
    for item in dataclasses.fields(kind):
        if item.name in value:
            decoded[item.name] = _decoded(
                hints[item.name], value[item.name], f"{where}: {item.name}"
            )
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise CorruptError(where, f"lacks {item.name!r}")
    return kind(**decoded)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields; Python compiles their texts anew each time that it is asked."""
    return typing.get_type_hints(kind)
