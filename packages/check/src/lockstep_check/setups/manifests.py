"""Compare the manifests of two processes: versions, switches, models and optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.compare import (
    CLASS_OF_MODULE,
    KERNEL_CHOICES,
    SEED,
    ModelSetup,
    NameMap,
    SetupDifference,
    differing_settings,
    every_circumstance,
    first_optimizers,
    is_known,
    setup_fact,
)
from lockstep.recordings import (
    BEFORE_BACKWARD,
    LoaderSetup,
    OptimizerSetup,
    RankManifest,
    RankRecording,
    Recording,
)
from lockstep.terminal import listed
from lockstep_check.setups.answers import Answers
from lockstep_check.setups.script_inputs import look_at_script_inputs

_OLDER = "a recording does not tell it: an earlier build made it, or it is of another framework than PyTorch"


def look_at_process(left: RankManifest, right: RankManifest, answers: Answers) -> None:
    """Versions, devices, switches, seeds and variables of one process of each run."""
    for fact, one in every_circumstance(left, right):
        if fact.name == SEED and not (left.seeds and right.seeds):
            continue
        if not is_known(one):
            answers.not_known([fact.aspect], f"{one.name} was taken out of a recording")
        elif one.reference != one.candidate:
            answers.differ(fact.aspect, one)
    if not (left.numerics and right.numerics):
        known = ("matmul-precision", "deterministic", "kernels", "threads", "default-dtype")
        answers.not_known(known, _OLDER)
    if not (left.seeds and right.seeds):
        answers.not_known(["seeds"], _OLDER)
    for run, manifest in (("reference", left), ("candidate", right)):
        answers.not_known(*_driver_unseen(run, manifest))
    _look_at_draws(left, right, answers)
    if bool(left.wrappers) != bool(right.wrappers):
        why = "one run wraps no model for several ranks, or did not note it"
        answers.not_known(["wrappers"], why)
    look_at_script_inputs(left, right, answers)
    if right.ended_by == BEFORE_BACKWARD:
        return
    if left.trained is None or right.trained is None:
        answers.not_known(["length"], "a training was killed, or its end was not seen")
    elif left.trained != right.trained:
        answers.differ(
            "length", SetupDifference("steps trained", str(left.trained), str(right.trained))
        )


def _driver_unseen(run: str, manifest: RankManifest) -> tuple[tuple[str, ...], str]:
    """The aspect of which a recording does not tell all, where it was made on an accelerator and no driver is named."""
    devices = [one for one in manifest.devices if not one.startswith("cpu")]
    if not devices or "driver" in manifest.platform:
        return (), ""
    return ("devices",), f"the {run}'s recording does not tell the driver of {devices[0]}"


def _look_at_draws(left: RankManifest, right: RankManifest, answers: Answers) -> None:
    """Data loaders and their samplers, and the states of the generators."""
    if not (left.random_states and right.random_states):
        answers.not_known(["random-state", "other-generators", "worker-seeds"], _OLDER)
        return
    for name in sorted(left.random_states.keys() & right.random_states.keys()):
        if left.random_states[name] != right.random_states[name]:
            aspect = "random-state" if name == "torch" else "other-generators"
            answers.differ(aspect, SetupDifference(f"state of {name}", "one", "another one"))
    loaders = [{(one.index, one.step): one for one in side.loaders} for side in (left, right)]
    counts = [len({index for index, _ in side}) for side in loaders]
    if counts[0] != counts[1]:
        what = "data loaders that were iterated"
        answers.differ("worker-seeds", SetupDifference(what, *map(str, counts)))
        return
    for key in sorted(loaders[0].keys() & loaders[1].keys()):
        ours, theirs = (side[key].settings for side in loaders)
        for one in differing_settings(ours, theirs):
            where = f"{one.name} of data loader {key[0]} at step {key[1]}"
            answers.differ("worker-seeds", SetupDifference(where, *one.shown))
    for key in sorted(loaders[0].keys() ^ loaders[1].keys()):
        words = ["as before" if key not in side else _changed(side, key) for side in loaders]
        where = f"data loader {key[0]} at step {key[1]}"
        answers.differ("worker-seeds", SetupDifference(where, words[0], words[1]))


def _changed(loaders: Mapping[tuple[int, int], LoaderSetup], key: tuple[int, int]) -> str:
    """What of a loader is another one than when it was noted before."""
    before = [one for one in sorted(loaders) if one[0] == key[0] and one[1] < key[1]]
    if not before:
        return "iterated for the first time"
    other = differing_settings(loaders[before[-1]].settings, loaders[key].settings)
    return ", ".join(f"{one.name} {one.shown[1]}" for one in other) or "another one"


def look_at_model(
    setup: ModelSetup, left: RankRecording, right: RankRecording, names: NameMap, answers: Answers
) -> None:
    """Modes, frozen and tied parameters, settings of modules, optimizers and schedules."""
    for one in setup.differences():
        answers.differ(setup_fact(one.name, "module-settings").aspect, one)
    answers.differ(
        "optimizer-options", *(SetupDifference(one.name, *one.shown) for one in setup.options)
    )
    _look_at_structure(setup, left, right, names, answers)
    if len(set(setup.compiled)) == 1:
        sides = ("yes", "no") if setup.compiled[0] == "reference" else ("no", "yes")
        answers.differ("compile", SetupDifference("compiled", *sides))
    if not (left.manifest.trainable and right.manifest.trainable):
        answers.not_known(["frozen", "tied", "optimizer-groups"], _OLDER)
    if any("training" not in rank.module_table.columns for rank in (left, right)):
        answers.not_known(["modes", "module-settings"], _OLDER)
    if not (left.manifest.optimizers and right.manifest.optimizers):
        why = "a run updates by hand, or no update was recorded"
        answers.not_known(["optimizer", "optimizer-options", "optimizer-groups", "schedule"], why)
    answers.differ("optimizer-groups", *_groups(setup, left.manifest, right.manifest, names))
    answers.differ("schedule", *_schedules(left.manifest, right.manifest))


def _look_at_structure(
    setup: ModelSetup, left: RankRecording, right: RankRecording, names: NameMap, answers: Answers
) -> None:
    """Modules and parameters that one run alone has, and modules of two classes."""
    paths = [
        {map_path(path): None for path in rank.module_table["module"].to_list()}
        for rank, map_path in ((left, str), (right, names.module))
    ]
    tensors = [
        {map_name(name): None for name in rank.manifest.trainable}
        for rank, map_name in ((left, str), (right, names.tensor))
    ]
    for what, (ours, theirs) in (("modules", paths), ("parameters", tensors)):
        if not ours or not theirs:
            continue
        for side, more, other in (("reference", ours, theirs), ("candidate", theirs, ours)):
            alone = [name for name in more if name not in other and name not in setup.tied]
            if alone:
                words = (listed(alone), "-") if side == "reference" else ("-", listed(alone))
                answers.differ("model", SetupDifference(f"{what} that one run alone has", *words))
    for path, module in setup.modules.items():
        for one in module.differences:
            if one.name == CLASS_OF_MODULE:
                where = f"class of {path or '(model)'}"
                answers.differ("model", SetupDifference(where, one.reference, one.candidate))


def _groups(
    setup: ModelSetup, left: RankManifest, right: RankManifest, names: NameMap
) -> Iterator[SetupDifference]:
    """Parameters that are trained with other options, where the options of groups are no other ones as a whole."""
    if setup.optimizers is not None or (setup.options and setup.groups is None):
        return
    told = {*setup.frozen, *setup.tied}
    ours, theirs = _by_parameter(left, str), _by_parameter(right, names.tensor)
    lone = [name for name in ours if name not in theirs and name not in told]
    more = [name for name in theirs if name not in ours and name not in told]
    if ours and theirs and (lone or more):
        words = (listed(lone) if lone else "-", listed(more) if more else "-")
        yield SetupDifference("parameters that one optimizer alone has", *words)
    other: dict[tuple[str, str, str], list[str]] = {}
    for name, options in ours.items():
        for one in differing_settings(options, theirs.get(name, options)):
            if one.name not in KERNEL_CHOICES:
                other.setdefault((one.name, *one.shown), []).append(name)
    for (option, *shown), parameters in other.items():
        yield SetupDifference(f"{option} of {listed(parameters)}", *shown)


def _by_parameter(manifest: RankManifest, renamed: Any) -> dict[str, dict[str, Any]]:
    """The options that each parameter is trained with at first."""
    return {
        renamed(name): group
        for optimizer in first_optimizers(manifest).values()
        for group, parameters in zip(optimizer.groups, optimizer.parameters, strict=False)
        for name in parameters
        if name
    }


def _schedules(left: RankManifest, right: RankManifest) -> Iterator[SetupDifference]:
    """Options that are alike at the first update and not at a later one that both recorded."""
    starts, ours, theirs = first_optimizers(left), *(_by_step(one) for one in (left, right))
    begun = {(index, one.step) for index, one in starts.items()}
    known: dict[int, set[str]] = {}
    for key in sorted(ours.keys() & theirs.keys(), key=lambda key: key[1]):
        for group, other in zip(ours[key].groups, theirs[key].groups, strict=False):
            for one in differing_settings(group, other):
                seen = known.setdefault(key[0], set())
                if one.name in KERNEL_CHOICES or one.name in seen:
                    continue
                seen.add(one.name)
                if key not in begun and ours[key].name == theirs[key].name:
                    yield SetupDifference(f"{one.name} at step {key[1]}", *one.shown)


def _by_step(manifest: RankManifest) -> dict[tuple[int, int], OptimizerSetup]:
    return {(one.index, one.step): one for one in manifest.optimizers}


def look_at_source(reference: Recording, candidate: Recording, answers: Answers) -> None:
    """The commits that the scripts were of."""
    left, right = reference.manifest.git, candidate.manifest.git
    for key in sorted(left.keys() & right.keys()):
        if left[key] != right[key]:
            answers.differ("source", SetupDifference(f"git {key}", left[key], right[key]))
    if not (left and right):
        answers.not_known(["source"], "a script is in no git repository, or it was not noted")
