"""How modules of two runs are set up otherwise, by the trees of modules that recordings hold.

Where what a module calls was not recorded, as it ran inside of compiled code, this is all that is known of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.align.names import SAME_NAMES, NameMap
from lockstep.align.settings import differing_settings
from lockstep.align.step import AlignedStep
from lockstep.core.errors import CorruptError
from lockstep.core.finding import SetupDifference
from lockstep.core.reason import About, Clause
from lockstep.core.site import CallKind
from lockstep.core.text import listed
from lockstep.store.limits import values_of
from lockstep.store.reader import RankRecording

_NO_MATTER = frozenset(
    {"inplace", "gradient_checkpointing", "layer_idx", "layer_id", "training", "name_or_path"}
)
"""Settings that change no number of a forward pass; `training` is held against each other as a mode."""

MODE, CLASS = "its mode", "its class"
"""Names of what differs where it is neither a setting nor a parameter."""

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

    Raises
    ------
    CorruptError
        If the settings of a module are no JSON object.
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


def settings_of(rank: RankRecording, text: str) -> Mapping[str, Any]:
    """Return the plain attributes of a module, of the text in its table.

    Raises
    ------
    CorruptError
        If that is no JSON object.
    """
    try:
        settings = values_of(text)
    except ValueError as error:
        raise CorruptError(
            f"{rank.path}/modules.parquet", f"the settings of a module are no JSON ({error})"
        ) from error
    if not isinstance(settings, dict):
        raise CorruptError(
            f"{rank.path}/modules.parquet", "the settings of a module are no JSON object"
        )
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
