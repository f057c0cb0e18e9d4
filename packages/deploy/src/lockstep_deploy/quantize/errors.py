"""Classify the error of each quantised layer, and decide whether its width explains it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep_deploy.engines import engine
from lockstep_deploy.noted import module_of, source_of
from lockstep_deploy.quantize.allowed import Allowance, of_blocks, of_levels, of_range
from lockstep_deploy.quantize.build import FLOAT_BITS, Plan, engine_of
from lockstep_deploy.quantize.calibration import Samples
from lockstep_deploy.quantize.graphs import Compared, Graph, compared_nodes
from lockstep_deploy.quantize.layers import (
    LOOKUP,
    Layer,
    attribute,
)
from lockstep_deploy.quantize.twins import Twin, TwinGraph
from lockstep_deploy.runtime import Array, Level, Session, Settings

Doubles = npt.NDArray[np.float64]

BEYOND = 4.0
"""How many times the expected variance an error may have: 6 dB. Errors within half a step have at most three times the
variance of an evenly spread one, so that a sum of independent ones stays below whatever the weights are."""

_COARSE = 2.0
"""A bit is lost where the step is over twice what the range needs."""

FLUSHED_SHARE = 0.5
"""Share of the values other than zero that may become zero. Of bell-shaped ones on 8 bits it is some 2 %."""

_ROUNDING = 2.0**-20
"""What computing in float32 itself may add, as a share of the largest result: a sum of some ten terms, rounded each."""


_BATCH_BYTES = 512 << 20
"""What the values of one run may take."""

_GROUP_BYTES = 256 << 20
"""What weights beside those of the model may take in one graph."""

_BESIDE = "the graph of layers beside their twins"


class Standing(str, Enum):
    """The class of an error."""

    NOISE = "noise"
    """What independent roundings to this width make."""
    CORRELATED = "more than noise"
    """More than independent roundings make, less than roundings can make that go the same way."""
    CLIPPED = "clipped"
    """More than roundings make, where inputs or results lie beyond the range that was calibrated; without a weight to
    judge by, where cutting them off adds more than `BEYOND` times what rounding does."""
    COARSE = "coarse step"
    """The step of the result is over twice what its bits need on these samples, whoever chose it."""
    FLUSHED = "flushed to zero"
    """Most of what it reads or returns lies below half a step: a few large values, as a mask, take the whole range."""
    KERNELS = "kernels"
    """The file is sound; this machine's integer kernels do not compute what it says."""
    FAULT = "fault"
    """More than any rounding to this width can make."""
    MEASURED = ""
    """Measured and not judged: nothing is known of the operator, or its error in float32 is no smaller."""


@dataclass
class _Sums:
    count: int = 0
    signal: float = 0.0
    own: float = 0.0
    fused: float = 0.0
    between: float = 0.0
    carried: float = 0.0
    expected: float = 0.0
    clipped: int = 0
    read: int = 0
    worst: float = 0.0
    flushed: float = 0.0
    flushed_wide: float = 0.0
    cut: float = 0.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerError:
    """A layer's error, as signal-to-quantisation-noise ratios in dB: `10 log10(sum y^2 / sum (y' - y)^2)`.

    name, op: The node.
    module, source: Where it came from, "" where the file does not say.
    bits: Of its weight; None where it has none that was quantised.
    engine: Who quantised it.
    expected: By its width; NaN where that is not known.
    own: Of the layer on inputs of float32, computed as the file says it.
    fused: The same, by the kernels that this machine runs.
    carried: Of its result in the whole quantised model, with what earlier layers passed on.
    clipped: Share of its inputs and results that lie beyond their range.
    standing: What the error is held to be.
    elements: Of its weight.
    flushed: Share of the values other than zero, of its input or its result, that become zero.
    flushed_wide: The same where activations had 16 bits.
    """

    name: str
    op: str
    module: str
    source: str
    bits: int | None
    engine: str
    expected: float
    own: float
    fused: float
    carried: float
    clipped: float
    standing: Standing
    elements: int = 0
    flushed: float = 0.0
    flushed_wide: float = 0.0

    def __str__(self) -> str:
        """Its module, or else its node."""
        return self.module or self.name


def sqnr(signal: float, noise: float) -> float:
    """Signal-to-quantisation-noise ratio in dB, of two sums of squares; infinite without noise."""
    if not math.isfinite(signal) or not math.isfinite(noise):
        return math.nan
    if noise <= 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def layer_errors(
    proto: Any, quantised: Any, layers: tuple[Layer, ...], plan: Plan, samples: Samples
) -> list[LayerError]:
    """Measure each layer on samples, alone and in the whole model, and judge it by its width.

    proto, quantised: The model of float32, and the one that `quantized_model` made of it by the plan.
    samples: What both are run on.
    """
    before, after = Graph(proto), Graph(quantised)
    chosen = {layer.name: layer for layer in layers if plan.bits[layer.name] != FLOAT_BITS}
    errors = []
    for several in _groups(compared_nodes(before, after, set(chosen)), chosen):
        graph = TwinGraph(before, after)
        for compared in several:
            layer = chosen.get(compared.node.name)
            known = None if layer is None else _allowance(before, after, compared, layer, plan)
            graph.add(compared, layer, known)
        sums = {twin.value: _Sums() for twin in graph.twins}
        fitting = _run_twins(graph, samples, sums)
        _run_carried(after, graph.twins, before, fitting, sums)
        errors += [_error(twin, sums[twin.value], plan, before) for twin in graph.twins]
    return errors


def _groups(nodes: Iterable[Compared], chosen: Mapping[str, Layer]) -> Iterator[list[Compared]]:
    """Nodes whose twins fit into one graph together: each has four weights more, and a file of ONNX at most 2 GB."""
    group: list[Compared] = []
    taken = 0
    for compared in nodes:
        layer = chosen.get(compared.node.name)
        size = 0 if layer is None else 4 * 4 * layer.elements
        if group and taken + size > _GROUP_BYTES:
            yield group
            group, taken = [], 0
        group.append(compared)
        taken += size
    if group:
        yield group


def _allowance(
    before: Graph, after: Graph, compared: Compared, layer: Layer, plan: Plan
) -> Allowance | None:
    bits = plan.bits[layer.name]
    weight = np.asarray(before.array(layer.weight), dtype=np.float32)
    axis = layer.channel_axis if plan.per_channel else None
    by = engine_of(layer, bits, static=plan.calibration is not None)
    if layer.op == "Gemm" and any(
        one.name in ("alpha", "beta") and one.f != 1 for one in compared.node.attribute
    ):
        return None
    if by == "blocks":
        return of_blocks(weight, bits, along=1 if layer.op == LOOKUP else 0)
    if by != "static":
        return of_levels(weight, bits, axis)
    maker = after.makers.get(compared.node.input[layer.weight_at])
    step = None
    if maker is not None and maker.input[1] in after.initializers:
        step = np.asarray(after.array(maker.input[1]), dtype=np.float32)
        # The runtime has a step for each output of a group where these share one index of the weight's axis.
        axis = attribute(maker, "axis", 1) if step.size > 1 else None
    reduced = plan.calibration is not None and plan.calibration.reduce_range and bits == 8
    return of_range(weight, bits - reduced, axis, step)


def _run_twins(graph: TwinGraph, samples: Samples, sums: dict[str, _Sums]) -> Samples:
    """Run layers beside their twins, as the file says it and by the kernels of this machine.

    Returns
    -------
    Samples
        The same ones, as many at once as fit into memory.
    """
    model = graph.sorted_model()
    wanted = {name for twin in graph.twins for name in twin.outputs}
    results = {twin.result for twin in graph.twins}
    written = Session(with_outputs(model, wanted), Settings(Level.NONE), name=_BESIDE)
    fused = Session(with_outputs(model, results), Settings(Level.ALL), name=_BESIDE)
    if not samples.is_fixed:
        first = next(replace(samples, batch=1).batches())
        single, _ = written.run(first), fused.run(first)  # both, as each run draws other numbers
        most = _BATCH_BYTES // max(sum(np.asarray(one).nbytes for one in single.values()), 1)
        samples = replace(samples, batch=max(1, min(samples.batch, most)))
    for batch in samples.batches():
        values, others = written.run(batch), fused.run(batch)
        for twin in graph.twins:
            _add_twin(sums[twin.value], twin, batch | values, others)
    return samples


def _add_twin(sums: _Sums, twin: Twin, values: dict[str, Array], others: dict[str, Array]) -> None:
    grid, entry = twin.compared.grid, twin.compared.entry
    exact = doubles(values[twin.value])
    own = _restored(twin, values[twin.result])
    fused = _restored(twin, others[twin.result])
    sums.count += exact.size
    sums.low, sums.high = min(sums.low, float(exact.min())), max(sums.high, float(exact.max()))
    sums.signal += energy(exact[~np.isinf(exact)])
    sums.own += energy(apart(own, exact))
    sums.fused += energy(apart(fused, exact))
    sums.between += energy(apart(fused, own))
    for known, value in ((entry, twin.reads), (grid, twin.value)):
        if known is not None and value:
            read = doubles(values[value])
            clips = known.clips(read)
            sums.clipped += int(clips.sum())
            sums.read += clips.size
            off = energy(apart(known.nearest(read[clips]), read[clips]))
            sums.cut = max(sums.cut, off / (clips.size * known.step**2 / 12))
            sums.flushed = max(sums.flushed, known.flushed(read))
            sums.flushed_wide = max(sums.flushed_wide, known.flushed(read, bits=16))
    if not twin.variance:
        return
    step = 0.0 if grid is None else grid.step
    # An activation that was merged into the layer sets results to zero, and their errors with them.
    shown = np.ones(exact.shape) if not _is_merged(twin, exact) else exact != 0
    sums.expected += float(np.sum((doubles(values[twin.variance]) + step**2 / 12) * shown))
    most = doubles(values[twin.most]) + step / 2 + _ROUNDING * np.abs(exact).max(initial=0.0)
    if grid is not None:
        most = most + np.abs(grid.nearest(exact) - exact)
    sums.worst = max(
        sums.worst, float(np.max(np.abs(own - exact) / np.maximum(most, 1e-300), initial=0.0))
    )


def with_outputs(proto: Any, names: Iterable[str]) -> Any:
    """The same model with these values among its outputs."""
    copied = type(proto)()
    copied.CopyFrom(proto)
    there = {one.name for one in copied.graph.output}
    info = engine("onnx").ValueInfoProto
    copied.graph.output.extend(info(name=one) for one in sorted(set(names) - there))
    return copied


def doubles(array: Array) -> Doubles:
    """An array to sum up."""
    return np.asarray(array, dtype=np.float64)


def apart(some: Doubles, others: Doubles) -> Doubles:
    """Return differences; zero where both are the same infinity, as after a mask."""
    same = some == others
    return np.asarray(np.where(same, 0.0, some) - np.where(same, 0.0, others))


def energy(values: Doubles) -> float:
    """The sum of squares."""
    return float(np.sum(np.square(values)))


def _is_merged(twin: Twin, exact: Array) -> bool:
    return (
        twin.compared.grid is not None
        and twin.value not in twin.compared.node.name
        and bool((exact == 0).any())
    )


def _restored(twin: Twin, values: Array) -> Any:
    grid = twin.compared.grid
    return doubles(values) if grid is None else grid.values(values)


def _run_carried(
    after: Graph, twins: list[Twin], before: Graph, samples: Samples, sums: dict[str, _Sums]
) -> None:
    """Run both whole models, the quantised one by the kernels of this machine."""
    names = {twin.value: twin.compared.shown for twin in twins}
    exact = Session(with_outputs(before.proto, names))
    whole = Session(with_outputs(after.proto, names.values()), name="the quantised model")
    for batch in samples.batches():
        references, candidates = exact.run(batch), whole.run(batch)
        for twin in twins:
            found = _restored(twin, candidates[names[twin.value]])
            sums[twin.value].carried += energy(apart(found, doubles(references[twin.value])))


def _error(twin: Twin, sums: _Sums, plan: Plan, before: Graph) -> LayerError:
    node, layer = before.by_name[twin.compared.node.name], twin.layer
    bits = None if layer is None else plan.bits[layer.name]
    static = plan.calibration is not None
    return LayerError(
        node.name, node.op_type, module_of(node) if layer is None else layer.module, source_of(node), bits,
        "activations" if layer is None or bits is None else engine_of(layer, bits, static=static),
        sqnr(sums.signal, sums.expected) if twin.variance else math.nan,
        sqnr(sums.signal, sums.own), sqnr(sums.signal, sums.fused), sqnr(sums.signal, sums.carried),
        sums.clipped / sums.read if sums.read else 0.0,
        _standing(twin, sums), 0 if layer is None else layer.elements, sums.flushed, sums.flushed_wide,
    )  # fmt: skip


def _standing(twin: Twin, sums: _Sums) -> Standing:
    step = 0.0 if twin.compared.grid is None else twin.compared.grid.step
    rounding = sums.signal * _ROUNDING**2
    if not all(map(math.isfinite, (sums.signal, sums.own, sums.fused))):
        return Standing.FAULT
    if twin.variance and sums.worst > 1:
        return Standing.FAULT
    if sums.between > BEYOND * max(sums.own, sums.count * step**2 / 12, rounding):
        return Standing.KERNELS
    if sums.flushed > FLUSHED_SHARE:
        return Standing.FLUSHED
    if _is_coarse(twin, sums):
        return Standing.COARSE
    if not twin.variance:
        return Standing.CLIPPED if sums.cut > BEYOND else Standing.MEASURED
    if sums.own <= BEYOND * max(sums.expected, rounding):
        return Standing.NOISE
    return Standing.CLIPPED if sums.clipped else Standing.CORRELATED


def _is_coarse(twin: Twin, sums: _Sums) -> bool:
    grid = twin.compared.grid
    return grid is not None and grid.step > _COARSE * (sums.high - sums.low) / (
        grid.most - grid.least
    )
