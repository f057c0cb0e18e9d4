"""A training step in a file: exported, proven by operator, and trained for some steps beside torch's own training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.errors import UsageError
from lockstep_deploy import exporting
from lockstep_deploy.calls import array_of
from lockstep_deploy.engines import engine
from lockstep_deploy.formats import Order, Written, proof_of
from lockstep_deploy.model_file import write_model
from lockstep_deploy.model_source import ModelSource, bound
from lockstep_deploy.module_run import flat_tensors
from lockstep_deploy.parity import ParityRuns, with_gaps
from lockstep_deploy.program_run import given_to
from lockstep_deploy.stage import TARGET, Stage
from lockstep_deploy.training_run import FACT, LOSS, NEXT, Training, training_of
from lockstep_deploy.training_step import (
    Tensors,
    TrainingStep,
    Update,
    first_tensor,
    plain_kernels,
)

STEPS = 20
"""Steps that the file is trained for beside torch."""

_DRAWS = 3
_TIMES_NOISE = 10.0
"""How many times the noise losses may be apart: of three draws the largest is kept, which is no bound."""


def write_training(
    source: ModelSource,
    inputs: Mapping[str, torch.Tensor],
    order: Order,
    folder: Path,
    train: str,
    loss: str,
) -> Written:
    """Export the training step of a model.

    source: Its module.
    inputs: A batch, by name; `target` among them, or it is drawn.
    order: What is to be written.
    folder: Where recordings are kept.
    train, loss: The update as `Update.of` reads it, and one of `LOSSES`.

    Raises UsageError if it cannot be exported.
    """
    if source.module is None or order.dynamic:
        raise UsageError(
            "--train-step needs a module, and takes no --dynamic: a step is exported for its batch"
        )
    _to_training(source)
    step = TrainingStep(source.module, loss, Update.of(train), _batch(source, inputs, loss))
    program, state = step.program(), step.first_state()
    exported = exporting.to_onnx(program, {"state": state, "batch": step.batch}, opset=order.opset)
    given = dict(zip(given_to(exported.program), flat_tensors((state, step.batch)), strict=True))
    runs = ParityRuns(exported.program, given, folder)
    plain = Stage(
        "plain", "The step as its rules wrote it, nothing optimised", runs.plain(exported.plain)
    )
    model = _renamed(exported.plain if order.plain else exported.optimized, state, step.batch)
    facts = {**source.facts, FACT: {"train": train, "loss": loss}, "torch": torch.__version__}
    file = write_model(model, order.path, {**facts, "proven": proof_of([plain], step.batch)})
    gaps, said = _trained_beside(step, training_of(file, order.settings))
    comparison = with_gaps(plain.parity.comparison, gaps, [])
    plain = replace(plain, parity=replace(plain.parity, comparison=comparison))
    words = f"{order.path}: a step of {train} on {loss}, {len(state)} tensors of state, opset {file.opset}"
    told = {"opset": file.opset, "digest": file.digest, "nodes": len(model.graph.node)}
    return Written(order.path, (words, said), (plain,), told)


def _to_training(source: ModelSource) -> None:
    assert source.module is not None
    source.module.train()
    source.said[:] = [one for one in source.said if not one.startswith("set to evaluation")]
    dropped = [
        one
        for one in source.module.modules()
        if isinstance(one, torch.nn.modules.dropout._DropoutNd)
    ]
    for one in dropped:
        one.eval()
        one.p = 0.0  # some modules read it and drop by themselves
    off = (
        f"; {len(dropped)} dropouts are off, as their draws cannot be held against each other"
        if dropped
        else ""
    )
    source.said.append(f"set to training{off}")


def _batch(source: ModelSource, inputs: Mapping[str, torch.Tensor], loss: str) -> Tensors:
    """The batch with its target; one is drawn where none is given."""
    assert source.module is not None
    batch = dict(
        bound(source.module, {name: one for name, one in inputs.items() if name != TARGET})
    )
    if TARGET in inputs:
        return {**batch, TARGET: inputs[TARGET]}
    with torch.no_grad():
        scores = first_tensor(source.module.eval()(**batch))
    source.module.train()
    _to_training(source)
    source.said.pop()
    draw = torch.Generator().manual_seed(0)
    if loss == "mse":
        return {**batch, TARGET: torch.randn(scores.shape, generator=draw)}
    shape = (scores.shape[0], *scores.shape[2:])
    return {**batch, TARGET: torch.randint(0, scores.shape[1], shape, generator=draw)}


def _renamed(model: Any, state: Tensors, batch: Tensors) -> Any:
    """The model with the names of state and batch; what the state begins with stands in it, and may be given."""
    onnx = engine("onnx")
    found = type(model)()
    found.CopyFrom(model)
    graph = found.graph
    into = dict(zip((one.name for one in graph.input), (*state, *batch), strict=True))
    out = dict(
        zip(
            (one.name for one in graph.output),
            (LOSS, *(f"{NEXT}{name}" for name in state)),
            strict=True,
        )
    )
    names = {**out, **into}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(array_of(tensor), name) for name, tensor in state.items()
    )
    return found


def _trained_beside(step: TrainingStep, training: Training) -> tuple[list[str], str]:
    """Train the file and torch on the same batches; what keeps them from agreeing, and what to say."""
    batches = [_moved_batch(step, number) for number in range(STEPS)]
    eager = step.eager_losses(batches)
    own = [training.step({name: array_of(one) for name, one in batch.items()}) for batch in batches]
    others = [_losses_in_double(step, batches)]
    with plain_kernels():
        others.append(step.eager_losses(batches))
    others += [step.eager_losses(batches, np.random.default_rng(at)) for at in range(_DRAWS)]
    noise = np.abs(np.array(others) - eager).max(axis=0)
    allowed = _TIMES_NOISE * np.maximum(
        np.maximum.accumulate(noise), np.finfo("f4").eps * np.abs(eager)
    )
    apart = np.abs(np.array(own) - eager)
    beyond = np.flatnonzero(~(apart <= allowed))
    largest = float((apart / np.maximum(np.abs(eager), 1e-30)).max())
    course = f"losses {eager[0]:.6g} to {eager[-1]:.6g}, at most rel {largest:.2g} apart"
    said = f"trained {STEPS} steps beside torch: {course}"
    if not beyond.size:
        return [], said
    at = int(beyond[0])
    gap = (
        f"the file leaves torch's training at step {at}: its loss is {own[at]:.9g}, torch's {eager[at]:.9g}, and"
        f" rounding makes {allowed[at]:.2g} of it at most"
    )
    return [gap], said


def _moved_batch(step: TrainingStep, number: int) -> Tensors:
    """Another batch of the same kind: the samples in another order, numbers scaled."""
    order = torch.randperm(len(step.batch[TARGET]), generator=torch.Generator().manual_seed(number))
    return {
        name: one[order] * (1 + 0.05 * number) if one.is_floating_point() else one[order]
        for name, one in step.batch.items()
    }


def _losses_in_double(step: TrainingStep, batches: list[Tensors]) -> list[float]:
    """Losses of torch's training in double precision: how far they are is what single precision makes of it."""
    wide = [
        {name: one.double() if one.is_floating_point() else one for name, one in batch.items()}
        for batch in batches
    ]
    return replace(step, module=copy.deepcopy(step.module).double()).eager_losses(wide)
