"""Compare how two runs set up their models and optimizers: frozen, tied, modules, parameter groups.

The facts come from the recordings' manifests and module tables; recordings of earlier builds tell fewer of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.align.names import SAME_NAMES, NameMap
from lockstep.align.settings import Setting, differing_settings
from lockstep.align.step import AlignedStep
from lockstep.core.errors import CorruptError
from lockstep.core.finding import SetupDifference
from lockstep.core.manifest import OptimizerSetup, RankManifest
from lockstep.core.optimizer_classes import KERNEL_CHOICES
from lockstep.core.reason import About, Clause
from lockstep.core.site import CallKind, Role
from lockstep.core.states import Moment
from lockstep.core.text import listed
from lockstep.locate.setups.setup_facts import FROZEN, GROUPS, OPTIMIZER, OTHER_MODE, TIED
from lockstep.store.limits import values_of
from lockstep.store.reader import RankRecording


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """The differences between the set-ups of two models, by the reference's names.

    Attributes
    ----------
    frozen
        Parameters that require no gradient in one run only, and which run that is.
    frozen_later
        The same of parameters that both runs begin to train: those that require none behind the last recorded step of
        one run only.
    tied
        Second names of parameters or modules in one run that are tensors or modules of their own in the other, each
        with the name that counts, and the run in which they are one.
    modes
        Modules in training mode in one run and in evaluation mode in the other, and the run in which they train.
    modules
        Modules that are set up otherwise, see `lockstep.locate.setups.model_setup`.
    groups
        How many parameter groups each side's optimizers have, where that differs.
    optimizers
        Names of both sides' optimizers where they differ.
    options
        Hyper-parameters of optimizers of one name that differ at the first recorded step, those of every group once.
    compiled
        The runs in which code was compiled, of which only the boundary was recorded.
    dropping
        Dropouts of the reference that leave anything out.
    ranks
        How many ranks train in either run.
    """

    frozen: Mapping[str, str] = field(default_factory=dict)
    frozen_later: Mapping[str, str] = field(default_factory=dict)
    tied: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, OtherModule] = field(default_factory=dict)
    groups: tuple[int, int] | None = None
    optimizers: tuple[str, str] | None = None
    options: tuple[Setting, ...] = ()
    compiled: tuple[str, ...] = ()
    dropping: tuple[str, ...] = ()
    ranks: int = 1

    def differences(self) -> list[SetupDifference]:
        """The same in one line each."""
        found = []
        for side in ("reference", "candidate"):
            names = [name for name, where in self.frozen.items() if where == side]
            if names:
                found.append(_one_sided(side, FROZEN, names))
            ties = [
                f"{one} is {other}" for one, (other, where) in self.tied.items() if where == side
            ]
            if ties:
                found.append(_one_sided(side, TIED, ties))
            training = [name or "(model)" for name, where in self.modes.items() if where == side]
            if training:
                found.append(_one_sided(side, OTHER_MODE, training))
        found.extend(self._of_modules())
        if self.optimizers is not None:
            found.append(SetupDifference(OPTIMIZER, *self.optimizers))
        if self.groups is not None:
            found.append(SetupDifference(GROUPS, *map(str, self.groups)))
        return found

    def _of_modules(self) -> Iterator[SetupDifference]:
        """Settings that differ, with the modules that they do at; modes and classes are told elsewhere."""
        paths: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for path, module in self.modules.items():
            for one in module.differences:
                if one.name not in (MODE, CLASS):
                    paths[one.name, one.reference, one.candidate].append(path or "(model)")
        for (what, reference, candidate), where in paths.items():
            yield SetupDifference(f"{what} of {listed(where)}", reference, candidate, what)


def _one_sided(side: str, what: str, names: Sequence[str]) -> SetupDifference:
    words = listed(names)
    return SetupDifference(what, *((words, "none") if side == "reference" else ("none", words)))


def model_setup(
    reference: RankRecording, candidate: RankRecording, names: NameMap = SAME_NAMES
) -> ModelSetup:
    """Hold the set-ups of one rank in two recordings against each other."""
    left, right = reference.manifest, candidate.manifest
    return ModelSetup(
        frozen=_frozen(left, right, names),
        frozen_later=_frozen_later(reference, candidate, names),
        tied=_tied(left, right, names, _paths(reference), _paths(candidate)),
        modes=_modes(reference, candidate, names),
        modules=module_differences(reference, candidate, names),
        groups=_groups(left, right),
        optimizers=_optimizers(left, right),
        options=tuple(_options(left, right)),
        compiled=tuple(_compiled(left, right)),
        dropping=dropping(reference),
        ranks=max(left.world_size, right.world_size),
    )


def _frozen(left: RankManifest, right: RankManifest, names: NameMap) -> dict[str, str]:
    return _otherwise(left.trainable, right.trainable, names.tensor)


def _otherwise(
    ours: Mapping[str, bool], theirs: Mapping[str, bool], renamed: Callable[[str], str]
) -> dict[str, str]:
    """The run that is not so, by what is so in the other run alone: of frozen parameters the one that freezes them."""
    there = {renamed(name): one for name, one in theirs.items()}
    return {
        name: "candidate" if one else "reference"
        for name, one in ours.items()
        if there.get(name, one) != one
    }


def _frozen_later(
    reference: RankRecording, candidate: RankRecording, names: NameMap
) -> dict[str, str]:
    ours, theirs = (_behind_last_step(one) for one in (reference, candidate))
    begun = reference.manifest.trainable
    ours = {name: trains for name, trains in ours.items() if begun.get(name, False)}
    return _otherwise(ours, theirs, names.tensor)


def _behind_last_step(rank: RankRecording) -> dict[str, bool]:
    """Which parameters require a gradient behind the last recorded step."""
    return {
        state.name: state.trainable
        for state in rank.states
        if state.moment is Moment.LAST and state.role is Role.PARAM
    }


def _tied(
    left: RankManifest,
    right: RankManifest,
    names: NameMap,
    left_paths: Collection[str],
    right_paths: Collection[str],
) -> dict[str, tuple[str, str]]:
    """Names that are one thing in one run and two in the other; a name that the other lacks says nothing."""

    def renamed(name: str) -> str:
        return names.tensor(name) if name in right.trainable else names.module(names.tensor(name))

    other = {renamed(alias): renamed(name) for alias, name in right.tied.items()}
    known = {*map(renamed, right.trainable), *map(names.module, right_paths)}
    ours = {*left.trainable, *left_paths}
    found = {
        alias: (name, "reference")
        for alias, name in left.tied.items()
        if alias in known and name in known and alias not in other
    }
    found |= {
        alias: (name, "candidate")
        for alias, name in other.items()
        if alias in ours and name in ours and alias not in left.tied
    }
    return found


def _modes(reference: RankRecording, candidate: RankRecording, names: NameMap) -> dict[str, str]:
    evaluating = _otherwise(_training(reference), _training(candidate), names.module)
    return {path: _TRAINS[side] for path, side in evaluating.items()}


_TRAINS = {"reference": "candidate", "candidate": "reference"}
"""The run that trains what the other evaluates."""


def _training(rank: RankRecording) -> dict[str, bool]:
    table = rank.module_table
    if "training" not in table.columns:
        return {}
    return dict(zip(table["module"].to_list(), table["training"].to_list(), strict=True))


def _paths(rank: RankRecording) -> Collection[str]:
    return [path for path in rank.module_table["module"].to_list() if path]


def first_step(manifest: RankManifest) -> dict[int, OptimizerSetup]:
    """Return every optimizer as it was at its first recorded step, by its number."""
    first: dict[int, OptimizerSetup] = {}
    for optimizer in manifest.optimizers:
        first.setdefault(optimizer.index, optimizer)
    return first


def _groups(left: RankManifest, right: RankManifest) -> tuple[int, int] | None:
    counts = [sum(len(one.groups) for one in first_step(side).values()) for side in (left, right)]
    return (counts[0], counts[1]) if counts[0] != counts[1] and all(counts) else None


def _optimizers(left: RankManifest, right: RankManifest) -> tuple[str, str] | None:
    ours, theirs = (
        ", ".join(one.name for one in first_step(side).values()) for side in (left, right)
    )
    return (ours, theirs) if ours != theirs and ours and theirs else None


def _options(left: RankManifest, right: RankManifest) -> Iterator[Setting]:
    known = set()
    for ours, theirs in zip(first_step(left).values(), first_step(right).values(), strict=False):
        if ours.step != theirs.step or ours.name != theirs.name:
            continue
        for group, other in zip(ours.groups, theirs.groups, strict=False):
            for one in differing_settings(group, other):
                if one.name not in KERNEL_CHOICES and str(one) not in known:
                    known.add(str(one))
                    yield one


def _compiled(left: RankManifest, right: RankManifest) -> Iterator[str]:
    for side, manifest in (("reference", left), ("candidate", right)):
        if compiled_in(manifest):
            yield side


def compiled_in(manifest: RankManifest) -> list[str]:
    """Return the compiled code that a process recorded at its boundary: classes, module paths and functions."""
    return [
        _NAMED.get(what, f"module {what}" if what[:1].isdigit() else what)
        for gap in manifest.not_seen
        if (what := gap.compiled)
    ]


_NAMED = {"torch._dynamo.eval_frame.OptimizedModule": "the model"}
"""What has no name of its own where `torch.compile` was given a whole model."""


# How modules of two runs are set up otherwise, by the trees of modules that recordings hold.
#
# Where what a module calls was not recorded, as it ran inside of compiled code, this is all that is known of it.

_NO_MATTER = frozenset(
    {"inplace", "gradient_checkpointing", "layer_idx", "layer_id", "training", "name_or_path"}
)
"""Settings that change no number of a forward pass; `training` is held against each other as a mode."""

MODE = "its mode"
"""The name of the difference where a module trains in one run alone."""

CLASS = "its class"
"""The name of the difference where a module is of another class."""

_MODES = {True: "training", False: "evaluation"}


@dataclass(frozen=True, slots=True)
class OtherModule:
    """A module that is set up otherwise in the candidate; its class is the reference's."""

    module_class: str
    differences: tuple[SetupDifference, ...]

    def numbers(self) -> list[SetupDifference]:
        """Settings that are numbers with a fraction: an epsilon, a momentum, a probability, a scale."""
        return [one for one in self.differences if _is_fraction(one.reference, one.candidate)]


def _is_fraction(*shown: str) -> bool:
    return all(map(_NUMBER.fullmatch, shown)) and not all(map(str.isdigit, shown))


_NUMBER = re.compile(r"-?[0-9.]+(e[-+]?[0-9]+)?")


@dataclass(slots=True)
class _Module:
    module_class: str
    training: bool | None
    settings: Mapping[str, Any]
    parameters: dict[str, None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.module_class.rpartition(".")[2]


def module_differences(
    reference: RankRecording, candidate: RankRecording, names: NameMap = SAME_NAMES
) -> dict[str, OtherModule]:
    """Modules at the same path that are set up otherwise, by the reference's paths, in the order of its tree.

    Modules of two classes are told apart by their names alone; recordings of earlier builds tell no settings.

    Raises CorruptError if the settings of a module are no JSON object.
    """
    there = {names.module(path): module for path, module in _modules(candidate, names).items()}
    found = {}
    for path, module in _modules(reference, SAME_NAMES).items():
        other = there.get(path)
        differences = tuple(_between(module, other)) if other is not None else ()
        if differences:
            found[path] = OtherModule(module.module_class, differences)
    return found


def dropping(rank: RankRecording) -> tuple[str, ...]:
    """Dropouts in training mode that leave anything out, by their paths."""
    return tuple(
        path
        for path, module in _modules(rank, SAME_NAMES).items()
        if "Dropout" in module.name and module.training and (module.settings.get("p") or 0) > 0
    )


def _between(left: _Module, right: _Module) -> Iterator[SetupDifference]:
    if left.training != right.training and None not in (left.training, right.training):
        yield SetupDifference(MODE, *(_MODES[bool(one.training)] for one in (left, right)))
    if left.name != right.name:
        yield SetupDifference(CLASS, left.name, right.name)
        return
    for one in differing_settings(dict(left.settings), dict(right.settings)):
        if one.name not in _NO_MATTER:
            yield SetupDifference(one.name, *one.shown)
    if left.parameters and right.parameters:
        for name in left.parameters:
            if name not in right.parameters:
                yield SetupDifference(name, "a parameter", "missing")
        for name in right.parameters:
            if name not in left.parameters:
                yield SetupDifference(name, "missing", "a parameter")


def _modules(rank: RankRecording, names: NameMap) -> dict[str, _Module]:
    """The modules of one recording by their own paths, their parameters as the reference names them."""
    table = rank.module_table
    parameters: dict[str, dict[str, None]] = defaultdict(dict)
    for name in rank.manifest.trainable:
        path, _, own = names.tensor(name).rpartition(".")
        parameters[path][own] = None
    return {
        row["module"]: _Module(
            row["module_class"],
            row.get("training"),
            settings_of(rank, row.get("settings", "{}")),
            parameters.get(names.module(row["module"]), {}),
        )
        for row in table.iter_rows(named=True)
    }


def settings_of(
    rank: RankRecording, text: str, file: str = "modules.parquet", what: str = "a module"
) -> Mapping[str, Any]:
    """Return the plain attributes of a module, or the settings of `what` else a table has in such a text.

    Raises CorruptError if that is no JSON object.
    """
    where = f"{rank.path}/{file}"
    try:
        settings = values_of(text)
    except ValueError as error:
        raise CorruptError(where, f"the settings of {what} are no JSON ({error})") from error
    if not isinstance(settings, dict):
        raise CorruptError(where, f"the settings of {what} are no JSON object")
    return settings


def unseen_inside(
    step: AlignedStep, modules: Mapping[str, OtherModule]
) -> dict[str, dict[str, OtherModule]]:
    """Those of these modules that were not seen to be called in both runs, by the nearest module around that was."""
    called = {item.reference.site.module for item in step.of_kind(CallKind.MODULE)}
    found: dict[str, dict[str, OtherModule]] = defaultdict(dict)
    for path, module in modules.items():
        around = next((one for one in outwards(path) if one in called), None)
        if around is not None and path not in called:
            found[around][path] = module
    return dict(found)


def is_within(path: str, around: str) -> bool:
    """Return whether a module is a second one or inside of it."""
    return not around or f"{path}.".startswith(f"{around}.")


def outwards(path: str) -> Iterator[str]:
    """A path and those of all modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def clauses_for_modules(modules: Mapping[str, OtherModule]) -> list[Clause]:
    """Return the differing settings with their modules: `eps is 1e-05 ... and 1e-03 ... at h.0.ln_2`."""
    paths: dict[SetupDifference, list[str]] = defaultdict(list)
    for path, module in modules.items():
        for one in module.differences:
            paths[one].append(path or "the model")
    return [
        Clause(
            About.SETTING,
            f"{one.name} is {one.reference} in the reference and {one.candidate} in the candidate at {listed(where)}",
            *(one.name, one.reference, one.candidate),
        )
        for one, where in paths.items()
    ]
