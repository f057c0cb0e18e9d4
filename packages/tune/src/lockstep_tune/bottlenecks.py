"""Find bottlenecks of a training and their cure: one detector for each kind, ranked by the gain."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lockstep.recordings import Family, operator_of
from lockstep.terminal import counted
from lockstep_tune import line_detectors
from lockstep_tune.found import Found
from lockstep_tune.profile import COLLECTIVE, Compile, Operator, Phase, Profile, time_text

LEAST_SHARE = 0.03
"""Advice that gains less of a step is not given."""

_LEAST_PIECE, _PIECES_SHARE = 0.01, 0.1
"""Pieces of one kind, each of the first share at least, are told as one if they add up to the second."""

_SURE_SHARE = 0.1
"""Idle cores are told behind all else that gains as much: how much a second core gains is a guess."""


class Class(str, Enum):
    """Kinds of bottlenecks."""

    OPERATOR = "operator"
    COPIES = "copies"
    FRAMEWORK = "framework"
    COMPILATION = "compilation"
    DATA = "data loading"
    HOST = "host"
    VALIDATION = "validation"
    RECOMPUTATION = "recomputation"
    COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One thing that slows a training.

    kind: Its class.
    what: What was seen, in a few words.
    place: `file:line`, or the name of what has no line.
    cost_us: Microseconds of a step that can be gained, at most.
    share: The same as a share of the step.
    evidence: The numbers that it is seen by.
    advice: What to change.
    knobs: Knobs of `lockstep tune` that may change it without an edit, the likeliest first.
    """

    kind: Class
    what: str
    place: str
    cost_us: float
    share: float
    evidence: str
    advice: str
    knobs: tuple[str, ...] = ()


def bottlenecks(profile: Profile, *, least_share: float = LEAST_SHARE) -> list[Bottleneck]:
    """Return what slows a training, the largest gain first; nothing that gains less than `least_share` of a step.

    Of several at one line only the largest is told: they count the same time. Those of one kind are added before they
    are ranked.
    """
    step_us = profile.step_us
    if not step_us > 0:
        return []
    groups = [
        [_bottleneck(kind, one, step_us, knobs) for one in detect(profile)]
        for kind, detect, *knobs in DETECTORS
    ]
    by_cost = sorted((one for group in groups for one in group), key=lambda one: -one.cost_us)
    largest: dict[str, Bottleneck] = {}
    for one in by_cost:
        largest.setdefault(one.place, one)
    kept = set(map(id, largest.values()))
    ranked = [_told([one for one in group if id(one) in kept], least_share) for group in groups]
    ranked.sort(key=lambda group: -sum(one.cost_us for one in group))
    told = [one for group in ranked for one in group]
    return _with_threads(profile, told, least_share)


def _bottleneck(kind: Class, found: Found, step_us: float, knobs: Sequence[str] = ()) -> Bottleneck:
    share = min(found.cost_us / step_us, 1.0)
    return Bottleneck(
        kind, found.what, found.place, found.cost_us, share, found.evidence, found.advice, tuple(knobs)
    )  # fmt: skip


def _told(group: Sequence[Bottleneck], least_share: float) -> list[Bottleneck]:
    """Return those of one kind that are told, the largest first; many small ones are told as one."""
    ordered = sorted(group, key=lambda one: -one.cost_us)
    large = [one for one in ordered if one.share >= least_share]
    small = [one for one in ordered if _LEAST_PIECE <= one.share < least_share]
    if sum(one.share for one in small) < _PIECES_SHARE:
        return large
    first = small[0]
    together = dataclasses.replace(
        first, cost_us=sum(one.cost_us for one in small), share=sum(one.share for one in small),
        evidence=f"{len(small)} lines like it together; here {first.evidence}",
    )  # fmt: skip
    return sorted([*large, together], key=lambda one: -one.cost_us)


def _with_threads(profile: Profile, told: list[Bottleneck], least_share: float) -> list[Bottleneck]:
    """Add what idle cores could do of the rest, behind all that surely gains."""
    named = {one.place for one in told}
    rest = [one for one in profile.operators if one.source not in named]
    for found in _threads(profile, rest):
        threads = _bottleneck(Class.HOST, found, profile.step_us, ("threads", "affinity"))
        if threads.share >= least_share:
            sure = [one for one in told if one.share >= min(_SURE_SHARE, threads.share)]
            return [*told[: len(sure)], threads, *told[len(sure) :]]
    return told


# -------------------------------------------------------------------------------------- data and host


def _data_loading(profile: Profile) -> Iterator[Found]:
    """Time in which the training waits for its loader."""
    rows = [one for one in profile.operators if one.name.startswith("enumerate(DataLoader)")]
    for place, found in _by_source(rows):
        waits_us = sum(one.host_us for one in found)
        alone = any("SingleProcess" in one.name for one in found)
        advice = (
            "load in processes beside the training: DataLoader(..., num_workers=2, persistent_workers=True)"
            if alone
            else "the workers are too slow: raise num_workers or prefetch_factor, or do less for each sample"
        )
        how = "loads in its own process" if alone else "waits for its worker processes"
        yield Found(
            "the training waits for data", place, waits_us,
            f"{time_text(waits_us)} of each step go by in the DataLoader, which {how}", advice,
        )  # fmt: skip


def _python(profile: Profile) -> Iterator[Found]:
    """Python between two operators that takes much longer than it does elsewhere."""
    if profile.pieces:
        yield from line_detectors.python(profile)
        return
    usual_us = _usual_python_us(profile)
    rows = [one for one in profile.operators if one.outermost and one.phase is not Phase.DATA]
    for place, found in _by_source(rows):
        more_us = sum(max(one.least_python_us - usual_us * one.calls, 0.0) for one in found)
        before = max(found, key=lambda one: one.least_python_us)
        yield Found(
            "torch waits for Python", place, more_us,
            f"{time_text(more_us)} of Python before {before.name}, beyond the usual {usual_us:.0f} us",
            "move that work out of the loop, into the loader's workers or into tensors",
        )  # fmt: skip


def _threads(profile: Profile, rows: Iterable[Operator]) -> Iterator[Found]:
    """Fewer threads than cores, or more."""
    threads, cores = profile.threads, profile.cores
    if profile.device != "cpu" or not threads or not cores or threads == cores:
        return
    call_us = _call_us(profile)
    heavy_us = sum(
        one.self_host_us for one in rows if one.self_host_us > 2 * call_us * one.calls
        and operator_of(one.name).family in _PARALLEL
    )  # fmt: skip
    if threads < cores:
        gain_us = heavy_us * (1 - threads / cores)
        what, evidence = "cores are idle", f"torch computes with {threads} of {cores} cores"
    else:
        gain_us = heavy_us * (1 - cores / threads)
        what, evidence = "threads wait for each other", f"{threads} threads share {cores} cores"
    change = f"set OMP_NUM_THREADS={cores}, or call torch.set_num_threads({cores}) in the script"
    if profile.threads_set:
        change = f"call torch.set_num_threads({cores}) there, or leave the call out"
    yield Found(
        what, profile.threads_set or "OMP_NUM_THREADS", gain_us,
        f"{evidence}; {time_text(heavy_us)} of each step can be shared by threads", change,
    )  # fmt: skip


_PARALLEL = frozenset(
    {Family.BILINEAR, Family.SMOOTH, Family.KINKED, Family.NORMALISATION, Family.SOFTMAX, Family.ATTENTION}
)  # fmt: skip


# ------------------------------------------------------------------------------------------ framework


def _syncs(profile: Profile) -> Iterator[Found]:
    """Numbers that the script reads off tensors: the host waits for the device, or at least for each one."""
    reads = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"}
    rows = [one for one in profile.operators if one.outermost and one.phase is not Phase.OPTIMIZER]
    for place, found in _by_source(rows):
        reading = [one for one in found if one.name in reads]
        calls = sum(one.calls for one in reading)
        if not reading or (calls < 2 and profile.device == "cpu"):
            continue
        took_us = sum(one.host_us + one.python_us for one in found if one.calls >= 1)
        yield Found(
            "numbers are read off tensors one by one", place, took_us,
            f"{calls:.0f} reads (.item(), int(), if tensor) in each step take {time_text(took_us)}",
            "keep them as tensors, and read them together once in many steps: .tolist() or torch.stack(...)",
        )  # fmt: skip


def _tiny(profile: Profile) -> Iterator[Found]:
    """Calls that one line makes many times, with what they call and their backward: each costs what a call costs."""
    call_us, inner_us = _call_us(profile), _inner_call_us(profile)
    groups: dict[tuple[str, str], list[Operator]] = defaultdict(list)
    for one in profile.operators:
        if one.phase in (Phase.FORWARD, Phase.BACKWARD):
            groups[one.source, one.module].append(one)
    for (place, module), found in groups.items():
        called = [one for one in found if _is_called(one) and one.phase is Phase.FORWARD]
        calls = sum(one.calls for one in called)
        if not calls:
            continue
        repeated = 1 - len({one.name for one in called}) / calls
        inner = sum(one.calls for one in found) - calls
        took_us = sum(one.host_us + one.python_us for one in found if one.outermost)
        cost_us = min(repeated * (calls * call_us + inner * inner_us), took_us)
        within = f" in {module}" if module else ""
        more = f", and {inner:.0f} within them and in their backward, cost {time_text(cost_us)}"
        each = f", of which each costs {call_us:.1f} us"
        yield Found(
            "many small calls", place or module, cost_us,
            f"{calls:.0f} calls{within} at this line in each step{more if inner else each} at least",
            "do it for the whole tensor in one call (no loop over samples, time steps or parameters),"
            " or compile the function: torch.compile",
        )  # fmt: skip


def _optimizer(profile: Profile) -> Iterator[Found]:
    """An optimizer that goes through its parameters one by one."""
    rows = [one for one in profile.operators if one.phase is Phase.OPTIMIZER]
    steps = [one for one in rows if one.name.startswith("Optimizer.step#")]
    inner = [one for one in rows if one.parent.startswith("Optimizer.step#")]
    small = [one for one in inner if not re.search(r"_fused|_foreach", one.name)]
    calls = sum(one.calls for one in small)
    if not steps or not calls:
        return
    call_us = _call_us(profile)
    own_us = sum(one.self_host_us for one in steps)
    cost_us = min(own_us + calls * call_us, sum(one.host_us for one in steps))
    name = steps[0].name.partition("#")[2].removesuffix(".step")
    yield Found(
        f"{name} updates one parameter after the other", steps[0].source or "the optimizer", cost_us,
        f"{calls:.0f} calls in each step, and {time_text(own_us)} of Python between them",
        f"{name}(..., fused=True), or foreach=True where it has no fused kernel",
    )  # fmt: skip


def _casts(profile: Profile) -> Iterator[Found]:
    """Copies that change the dtype."""
    rows = [
        one
        for one in profile.operators
        if one.cast and one.phase in (Phase.FORWARD, Phase.BACKWARD)
    ]
    for place, found in _by_source(rows):
        took_us = sum(one.total_us for one in found)
        kinds = ", ".join(sorted({one.cast for one in found}))
        yield Found(
            "tensors change their dtype back and forth", place, took_us,
            f"{sum(one.calls for one in found):.0f} casts in each step ({kinds}) take {time_text(took_us)}",
            "keep the tensor in the dtype that it is used in; cast a constant once, before the loop",
        )  # fmt: skip


# --------------------------------------------------------------------------------- copies, operators


def _copies(profile: Profile) -> Iterator[Found]:
    """Tensors that are copied for another order in memory, or for nothing."""
    rows = [
        one for one in profile.operators
        if one.name == "aten::clone" and not one.cast and one.phase is not Phase.DATA
    ]  # fmt: skip
    for place, found in _by_source(rows):
        took_us = sum(one.total_us for one in found)
        strided = sum(one.calls for one in found if one.strided)
        why = "their order in memory changes" if strided else "their order stays"
        yield Found(
            "tensors are copied", place, took_us,
            f"{sum(one.calls for one in found):.0f} copies in each step take {time_text(took_us)}; {why}",
            "leave out .contiguous() and .clone(), or keep one layout throughout (channels_last for convolutions)",
        )  # fmt: skip


def _attention(profile: Profile) -> Iterator[Found]:
    """Attention that writes its scores: softmax between two batched products of one module."""
    groups: dict[str, list[Operator]] = defaultdict(list)
    for one in profile.operators:
        groups[one.module].append(one)
    found: dict[str, list[float]] = defaultdict(list)
    for rows in groups.values():
        soft = [one for one in rows if "softmax" in one.name and _is_square(one.shapes)]
        products = sum(one.calls for one in rows if one.name in ("aten::bmm", "aten::baddbmm"))
        if soft and products >= 2:
            shape = soft[0].shapes.split(" ")[0]
            places = [one.source for one in soft if one.phase is Phase.FORWARD] or [soft[0].module]
            # All that goes over the scores but the products themselves.
            over = [one for one in rows if shape in one.shapes.split(" ") and "bmm" not in one.name]
            found[places[0]].append(sum(one.self_device_us or one.self_host_us for one in over))
    for place, times in found.items():
        yield Found(
            "attention writes its scores to memory", place, sum(times),
            f"{counted(len(times), 'module')} spend {time_text(sum(times))} of each step on softmax, masks and copies",
            "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=...) never writes them",
        )  # fmt: skip


def _is_square(shapes: str) -> bool:
    sizes = shapes.split(" ")[0].strip("[]").split(",")
    return len(sizes) >= 3 and sizes[-1] == sizes[-2]


def _double(profile: Profile) -> Iterator[Found]:
    """Work in float64, which takes at least twice the bytes and the lanes of float32."""
    rows = [one for one in profile.operators if one.dtypes.split(" ")[0] == "double"]
    for place, found in _by_source(one for one in rows if one.phase is not Phase.DATA):
        took_us = sum(one.self_device_us or one.self_host_us for one in found)
        slowest = max(found, key=lambda one: one.self_host_us + one.self_device_us)
        yield Found(
            "computed in float64", place, took_us / 2,
            f"{slowest.name} and others work on float64 for {time_text(took_us)} of each step",
            "use float32: half the bytes, twice as many numbers at once",
        )  # fmt: skip


def _elementwise(profile: Profile) -> Iterator[Found]:
    """Chains of elementwise operators of one module: each reads and writes all of the tensor again."""
    groups: dict[tuple[str, str], list[Operator]] = defaultdict(list)
    for one in profile.operators:
        is_called = one.outermost and one.phase is Phase.FORWARD and one.shapes
        if is_called and operator_of(one.name).family in _ELEMENTWISE:
            groups[one.module, one.shapes.split(" ")[0]].append(one)
    for (module, _), found in groups.items():
        calls = sum(one.calls for one in found)
        if calls < 3:
            continue
        took_us = sum(one.self_device_us or one.self_host_us for one in found)
        names = ", ".join(dict.fromkeys(one.name.removeprefix("aten::") for one in found))
        slowest = max(found, key=lambda one: one.self_host_us + one.self_device_us)
        yield Found(
            "elementwise operators one after the other", slowest.source or module,
            took_us * (1 - 1 / calls),
            f"{calls:.0f} of them ({names}) read and write the same tensor for {time_text(took_us)} of each step",
            "compile the function that has them (torch.compile), or use a built-in operator that does all of it",
        )  # fmt: skip


_ELEMENTWISE = frozenset({Family.SMOOTH, Family.KINKED, Family.ADDITIVE, Family.PRODUCT})


# ------------------------------------------------------------------------------------- compilation


def _recompiles(profile: Profile) -> Iterator[Found]:
    """Functions that are compiled again and again after the first step."""
    groups: dict[tuple[str, int], list[Compile]] = defaultdict(list)
    for one in profile.compiles:
        if one.is_late:
            groups[one.file, one.line].append(one)
    for (file, line), found in groups.items():
        took_us = 1e6 * sum(one.took_s for one in found) / max(profile.steps_seen - 1, 1)
        because = next((one.again_because for one in reversed(found) if one.again_because), "")
        guard = because.partition(": ")[2].split("\n")[0].split("  #")[0].strip() or because
        yield Found(
            f"{found[0].function} is compiled again", f"{file}:{line}", took_us,
            f"{counted(len(found), 'compilation')} after the first step"
            + (f"; the last because of: {guard}" if guard else ""),
            "keep shapes and arguments the same (pad, drop_last=True), or mark what varies:"
            " torch._dynamo.mark_dynamic, torch.compile(dynamic=True)",
        )  # fmt: skip


_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


def _graph_breaks(profile: Profile) -> Iterator[Found]:
    """Places at which Dynamo leaves a function and enters another graph behind."""
    regions = [one for one in profile.operators if one.name.startswith("Torch-Compiled Region")]
    calls = sum(one.calls for one in regions)
    if not calls:
        return
    entry_us = sum(one.self_host_us + one.python_us for one in regions) / calls
    breaks = {
        (one.file, found[2]): found[1]
        for one in profile.compiles
        if (found := _RESUMED.match(one.function))
    }
    reasons = [text.split("\n")[0] for one in profile.compiles for text in one.breaks]
    per_place = (calls - 1) * entry_us / max(len(breaks), 1)
    for (file, line), function in breaks.items():
        yield Found(
            f"{function} breaks into several graphs", f"{file}:{line}", per_place,
            f"{calls:.0f} compiled regions are entered in each step, {entry_us:.0f} us each"
            + (f"; {reasons[0]}" if reasons else ""),
            "take what Dynamo cannot trace out of the function (print, .item(), data-dependent if);"
            " torch.compile(fullgraph=True) shows each place",
        )  # fmt: skip


def _communication(profile: Profile) -> Iterator[Found]:
    """Collectives that the training waits for."""
    rows = [
        one for one in profile.operators
        if COLLECTIVE.match(one.name) and one.outermost
    ]  # fmt: skip
    for place, found in _by_source(rows):
        called_us = sum(
            statistics.fmean(one.us) for one in profile.pieces if one.place == place
        )  # fmt: skip
        took_us = max(sum(one.host_us for one in found), called_us)
        yield Found(
            "ranks wait for each other", place, took_us,
            f"{sum(one.calls for one in found):.0f} collectives in each step, {time_text(took_us)} without overlap",
            "reduce gradients in buckets while backward runs (DistributedDataParallel), and not between"
            " accumulated batches (no_sync)",
        )  # fmt: skip


DETECTORS: tuple[tuple[Any, ...], ...] = (
    (Class.DATA, _data_loading, "workers", "prefetch", "pin"),
    (Class.HOST, _python),
    (Class.VALIDATION, line_detectors.validation),
    (Class.RECOMPUTATION, line_detectors.recomputation, "checkpointing"),
    (Class.FRAMEWORK, _syncs),
    (Class.FRAMEWORK, _tiny, "compile"),
    (Class.FRAMEWORK, _optimizer, "optimizer"),
    (Class.FRAMEWORK, _casts, "compile"),
    (Class.COPIES, _copies, "channels_last", "compile"),
    (Class.OPERATOR, _attention, "compile", "autocast"),
    (Class.OPERATOR, _double),
    (Class.OPERATOR, _elementwise, "compile"),
    (Class.COMPILATION, _recompiles),
    (Class.COMPILATION, _graph_breaks),
    (Class.COMMUNICATION, _communication, "bucket"),
)
"""Every detector: the class that it finds, itself, and the knobs of `lockstep tune` that may cure it."""


# ---------------------------------------------------------------------------------------- measures


def _by_source(rows: Iterable[Operator]) -> list[tuple[str, list[Operator]]]:
    """Rows by the line that they are from, or by the module where no line is known."""
    groups: dict[str, list[Operator]] = defaultdict(list)
    for one in rows:
        groups[one.source or one.module or one.name].append(one)
    return list(groups.items())


def _is_called(one: Operator) -> bool:
    """Whether Python calls it as an operator."""
    return one.outermost and one.name.startswith("aten::")


def _call_us(profile: Profile) -> float:
    """What a call costs that has next to nothing to do: a tenth of all calls of this profile cost no more."""
    return _quantile(
        ((one.host_us + one.python_us) / one.calls, one.calls)
        for one in profile.operators
        if _is_called(one)
    )


def _inner_call_us(profile: Profile) -> float:
    """The same of what Python does not call itself: what operators call, and the nodes of backward."""
    return _quantile(
        (one.self_host_us / one.calls, one.calls)
        for one in profile.operators
        if one.phase is Phase.BACKWARD or (one.phase is Phase.FORWARD and not one.outermost)
    )


def _usual_python_us(profile: Profile) -> float:
    """Python between two calls: the median of all calls of this profile."""
    return _quantile(
        (
            (one.least_python_us / one.calls, one.calls)
            for one in profile.operators
            if _is_called(one)
        ),
        share=0.5,
    )


def _quantile(weighted: Iterable[tuple[float, float]], share: float = 0.1) -> float:
    rows = sorted(weighted)
    left = share * sum(weight for _, weight in rows)
    for value, weight in rows:
        left -= weight
        if left <= 0:
            return value
    return 0.0
