"""The switches between two trainings: variables, torch's own, interpreters, commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.errors import UsageError
from lockstep_tune.settings import Settings

VARIABLE = "LOCKSTEP_SWITCHES"
"""The environment variable that tells the process what is switched off in it, as JSON; see `switching`."""

INSIDE = "lockstep_tune.switching"
"""What a process loads to switch."""


@dataclass(frozen=True, slots=True)
class State:
    """One state of a switch.

    name: As it is printed.
    environment: Variables that are set for the command.
    without: What is switched off in the process: names of `SWITCHES`, and `fusion`.
    float32: Modules that run in float32 although autocast is on.
    python: The interpreter that takes the place of the command's first word, "" for none.
    commit: The commit of which the files are run, "" for those that are there.
    settings: Knobs that are set.
    command: The words that take the command's place, none for the command as it is.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    float32: tuple[str, ...] = ()
    python: str = ""
    commit: str = ""
    settings: Settings = field(default_factory=Settings)
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ladder:
    """States in a row: if one of them makes the numbers differ, those after it do too.

    name: What is switched.
    states: The first one is expected to agree, the last one is the one that is expected to differ.
    adds: By the name of a state, what it adds to the one before.
    """

    name: str
    states: tuple[State, ...]
    adds: Mapping[str, str] = field(default_factory=dict)


AS_IT_IS = State("as it is")

SWITCHES: Mapping[str, str] = {
    "compile": "torch.compile",
    "amp": "autocast, which computes in 16 bits",
    "attention": "fused kernels of scaled_dot_product_attention",
    "optimizer": "foreach and fused kernels of the optimizer",
    "onednn": "oneDNN's kernels",
    "tf32": "TF32 in float32 products and convolutions",
    "nondeterministic": "kernels that are not deterministic",
}
"""Everything that is switched off together by default, with what it is."""

FUSION = "fusion"
"""Inductor's fusion of several operators into one kernel: tried alone by `--switch fusion`."""

BACKENDS = Ladder(
    "torch.compile",
    (
        State("without compile", without=("compile",)),
        State("backend eager", {"TORCH_BISECT_BACKEND": "eager"}),
        State("backend aot_eager", {"TORCH_BISECT_BACKEND": "aot_eager"}),
        State(
            "backend aot_eager_decomp_partition",
            {"TORCH_BISECT_BACKEND": "aot_eager_decomp_partition"},
        ),
        State("inductor without fusion", without=(FUSION,)),
        AS_IT_IS,
    ),
    {
        "backend eager": "Dynamo, which captures graphs",
        "backend aot_eager": "AOTAutograd, which traces backward ahead",
        "backend aot_eager_decomp_partition": "decompositions, and what is computed again in backward",
        "inductor without fusion": "inductor's passes and the kernels that it generates, an operator each",
        "as it is": "fusion: kernels in which inductor puts several operators together",
    },
)
"""What torch.compile runs; torch reads the variable itself (`torch._inductor.compiler_bisector`)."""

SUBSYSTEMS = ("pre_grad_passes", "joint_graph_passes", "post_grad_passes", "lowerings")
"""Parts of inductor that torch's CompilerBisector counts and can stop after so many."""


def applied(subsystem: str, count: int, names: Sequence[str] = ()) -> State:
    """The state in which a part of inductor is applied `count` times, and not any more."""
    environment = {
        "TORCH_BISECT_BACKEND": "inductor",
        "TORCH_BISECT_SUBSYSTEM": subsystem,
        "TORCH_BISECT_MAX": str(count - 1),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    last = f", the last is {names[count - 1]}" if 0 < count <= len(names) else ""
    return State(f"{count} {subsystem}{last}", environment)


def all_on_after_all_off(elements: Sequence[str], kept_off: Sequence[str] = ()) -> Ladder:
    """A ladder from all switches off to all on, one more on each time; those in `kept_off` stay off."""
    states = [
        State(f"without {', '.join(off)}" if off else AS_IT_IS.name, without=off)
        for count in range(len(elements) + 1)
        for off in [tuple(sorted({*elements[count:], *kept_off}))]
    ]
    return Ladder(
        "switches",
        tuple(states),
        {state.name: SWITCHES[one] for state, one in zip(states[1:], elements, strict=True)},
    )


def float32_ladder(modules: Sequence[str]) -> Ladder:
    """A ladder from all modules in float32 to none, in order of their calls."""
    states = [
        State(f"modules from {modules[count] or 'the first'} on in float32", float32=tuple(modules[count:]))
        for count in range(len(modules))
    ]  # fmt: skip
    states.append(AS_IT_IS)
    adds = {state.name: f"16 bits in {one}" for state, one in zip(states[1:], modules, strict=True)}
    return Ladder("autocast by module", tuple(states), adds)


def python_ladder(interpreters: Sequence[str]) -> Ladder:
    """Interpreters, with the packages that each has, as a ladder. Raises UsageError if there is only one."""
    if len(interpreters) < 2:
        raise UsageError("give --python twice: first the interpreter that agrees, then the other")
    return Ladder("interpreter", tuple(State(one, python=one) for one in interpreters))
