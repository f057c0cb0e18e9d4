"""onnxruntime on the CPU: sessions, what every node returns, the graph that it really runs, times and memory."""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep_deploy import optimizers
from lockstep_deploy.engines import as_sentence, engine
from lockstep_deploy.large_models import (
    graph_alone,
    inferred_shapes,
    is_apart,
    is_large,
    message_for,
    opened,
)
from lockstep_deploy.model_file import ModelFile, check_between, value_bytes
from lockstep_deploy.noted import refused_in
from lockstep_deploy.optimizers import Optimizer

Array = npt.NDArray[Any]

BATCH_BYTES = 256 << 20
"""What the values of one pass over a graph may take, where every node's output is asked for."""


_WEIGHTS_ASIDE = "session.optimized_model_external_initializers_file_name"


class Level(str, Enum):
    """How much the runtime may rewrite a graph before it runs it."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


_LEVELS = {Level.NONE: "ORT_DISABLE_ALL", Level.BASIC: "ORT_ENABLE_BASIC", Level.EXTENDED: "ORT_ENABLE_EXTENDED",
           Level.LAYOUT: "ORT_ENABLE_LAYOUT", Level.ALL: "ORT_ENABLE_ALL"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """How a session runs; the same settings on the same machine give the same numbers.

    level: What the runtime may rewrite.
    disabled: Optimizers that it must leave out, by name.
    threads: Of one operator; operators run one after the other.
    entries: Settings that the runtime knows by name alone, such as `optimization.enable_gelu_approximation`.
    """

    level: Level = Level.ALL
    disabled: tuple[str, ...] = ()
    threads: int = 1
    entries: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTime:
    """A node of the graph that ran: its name, operator, and time in seconds, the median of the runs."""

    name: str
    op: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of running a model: latencies of each run in seconds, each node's time, peak memory."""

    latencies_s: tuple[float, ...]
    nodes: tuple[NodeTime, ...]
    peak_bytes: int

    @property
    def median_s(self) -> float:
        """The median latency, in seconds."""
        return statistics.median(self.latencies_s)


class Session:
    """A model that is loaded.

    model: An `onnx.ModelProto` with its weights in it.
    settings: How it runs.
    name: What to call it in sentences.

    Raises UsageError if the runtime refuses it, or does not know the name of a disabled optimizer.
    """

    def __init__(
        self, model: Any, settings: Settings = Settings(), *, name: str = "the model"
    ) -> None:
        if settings.disabled:
            optimizers.check_names(
                settings.disabled, ran_by(model, replace(settings, disabled=()), name=name)
            )
        self._name, self._where = name, partial(refused_in, model)
        self._session = _opened(model, settings, name)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it returns."""
        return tuple(one.name for one in self._session.get_outputs())

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Return the model's outputs, by name; a sequence is a list of arrays.

        Raises UsageError if the runtime fails, as where an input does not fit.
        """
        with as_sentence(f"{self._name}: does not run", where=self._where):
            return dict(zip(self.outputs, self._session.run(None, dict(inputs)), strict=True))


def ran_by(model: Any, settings: Settings, *, name: str = "the model") -> tuple[Optimizer, ...]:
    """The optimizers that the runtime runs over a model, in order, and which of them change it."""
    log = optimizers.with_native_log(lambda: _opened(model, settings, name, _log_everything))
    return optimizers.ran_in(log)


def optimized_graph(
    model: Any, settings: Settings, *, name: str = "the model", aside: Path | None = None
) -> Any:
    """The graph that the runtime really runs, as an `onnx.ModelProto`.

    model, settings, name: As `Session` takes them.
    aside: Where the weights of a model that is not small are left, as long as its graph is needed; None loads them.
    """
    with contextlib.ExitStack() as stack:
        folder = aside or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "optimized.onnx"

        def dump(options: Any) -> None:
            options.optimized_model_filepath = str(path)
            if is_large(model) or any(map(is_apart, model.graph.initializer)):
                options.add_session_config_entry(_WEIGHTS_ASIDE, "optimized.data")

        _opened(model, settings, name, dump)
        if aside is None:
            return engine("onnx").load(str(path))
        found = engine("onnx").load(str(path), load_external_data=False)
        return opened(found, path.parent, [*found.graph.initializer])


def every_value(
    model: Any,
    inputs: Mapping[str, Array],
    names: Sequence[str],
    settings: Settings = Settings(level=Level.NONE),
    *,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[str, Any]]:
    """Yield the values of nodes, a pass over the graph for as many as fit into memory together.

    model: An `onnx.ModelProto` with its weights in it; asking for a value keeps the runtime from fusing it away.
    inputs: What it is given.
    names: Of the values wanted, in order of the graph; each is given once.
    settings: How it runs.
    batch_bytes: What the values of a pass may take, in bytes, where shape inference knows their sizes.
    """
    outputs = list(model.graph.output)
    own = {one.name: one for one in outputs}
    info = engine("onnx").ValueInfoProto
    for batch in _batches(model, inputs, names, batch_bytes):
        del model.graph.output[:]
        model.graph.output.extend(own.get(name, info(name=name)) for name in batch)
        try:
            session = Session(model, settings)
        finally:
            del model.graph.output[:]
            model.graph.output.extend(outputs)
        yield from session.run(inputs).items()


def measure(
    model: Any,
    inputs: Mapping[str, Array],
    settings: Settings = Settings(),
    *,
    runs: int = 10,
) -> Measured:
    """Run a model several times, after one run that is not counted.

    model: An `onnx.ModelProto` with its weights in it.
    inputs: What it is given each time.
    settings: How it runs.
    runs: How many runs count; as many more are taken with the runtime's profiler, for the times of the nodes.
    """
    session = Session(model, settings)
    session.run(inputs)
    latencies = []
    for _ in range(runs):
        began = time.perf_counter()
        session.run(inputs)
        latencies.append(time.perf_counter() - began)
    nodes, peak = _profiled(model, inputs, settings, runs)
    return Measured(tuple(latencies), nodes, peak)


def checked_sizes(file: ModelFile, inputs: Mapping[str, Array], most_bytes: int) -> None:
    """Refuse inputs for which a value between the nodes would be over a bound, as far as shapes can be followed.

    Raises UsageError if one would.
    """
    check_between(_with_shapes(file.proto, inputs), file.path, most_bytes)


# --------------------------------------------------------------------------------------- inside


def _opened(
    model: Any, settings: Settings, name: str, more: Callable[[Any], None] | None = None
) -> Any:
    optimizers.check_entries(settings.entries)
    runtime = engine("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = getattr(
        runtime.GraphOptimizationLevel, _LEVELS[settings.level]
    )
    options.intra_op_num_threads, options.inter_op_num_threads = settings.threads, 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # errors are raised besides
    for key, value in settings.entries:
        options.add_session_config_entry(key, value)
    if more is not None:
        more(options)
    with as_sentence(f"{name}: the runtime does not take it", where=partial(refused_in, model)):
        message, weights = message_for(model, options)
        session = runtime.InferenceSession(
            message, options, providers=["CPUExecutionProvider"],
            disabled_optimizers=list(settings.disabled),
        )  # fmt: skip
    session.kept = weights
    return session


def _log_everything(options: Any) -> None:
    options.log_severity_level, options.log_verbosity_level = 0, 1


def _with_shapes(model: Any, inputs: Mapping[str, Array]) -> Any:
    """A copy of a model whose inputs have the extents that they are given; of a large one, without its weights."""
    fixed, _ = graph_alone(model)
    for value in fixed.graph.input:
        if value.name in inputs:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for extent in np.shape(inputs[value.name]):
                shape.dim.add(dim_value=extent)
    return fixed


def _batches(
    model: Any, inputs: Mapping[str, Array], names: Sequence[str], most: int
) -> Iterator[list[str]]:
    """Names of values that take at most so many bytes together; one of unknown size counts as a tenth of that."""
    sizes = _sizes(_with_shapes(model, inputs))
    batch: list[str] = []
    taken = 0
    for name in names:
        size = sizes.get(name, most // 10)
        if batch and taken + size > most:
            yield batch
            batch, taken = [], 0
        batch.append(name)
        taken += size
    if batch:
        yield batch


def _sizes(model: Any) -> dict[str, int]:
    """Bytes of each value whose shape is known."""
    inferred = inferred_shapes(model)
    found = {
        one.name: value_bytes(one) for one in (*inferred.graph.value_info, *inferred.graph.output)
    }
    return {name: size for name, size in found.items() if size is not None}


def _profiled(
    model: Any, inputs: Mapping[str, Array], settings: Settings, runs: int
) -> tuple[tuple[NodeTime, ...], int]:
    """Median time of each node, slowest first, and the most bytes that the runtime held."""
    with tempfile.TemporaryDirectory() as folder:

        def profile(options: Any) -> None:
            options.enable_profiling, options.profile_file_prefix = (
                True,
                str(Path(folder) / "profile"),
            )

        session = _opened(model, settings, "the model", profile)
        for _ in range(runs + 1):
            session.run(None, dict(inputs))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[tuple[str, str], list[float]] = {}
    peak = 0
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            arguments = event["args"]
            key = event["name"].removesuffix("_kernel_time"), arguments["op_name"]
            times.setdefault(key, []).append(event["dur"] / 1e6)
            peak = max(peak, int(arguments.get("mem_in_use_peak", 0)))
    nodes = [
        NodeTime(name, op, statistics.median(every[1:] or every))
        for (name, op), every in times.items()
    ]
    return tuple(sorted(nodes, key=lambda one: -one.time_s)), peak
