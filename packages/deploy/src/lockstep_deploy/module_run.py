"""The module that was exported, called as its user calls it: what it returns, and what of it no file can repeat."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

from lockstep.recorder import module_of
from lockstep.terminal import listed
from lockstep_deploy.calls import (
    arguments_of,
    array_of,
    is_call,
    operator_name,
    stack_of,
    tensor_of,
)
from lockstep_deploy.engines import first_line
from lockstep_deploy.node_values import Values
from lockstep_deploy.rounding import relative_distance

_ROUNDINGS = 1 << 12
"""Unit roundoffs that a program's outputs may be off its module's: the kernels are the same, or decomposed."""


_CHOOSING = ("aten.topk.default", "aten.sort.default")
"""Operators whose indices of equal values are not defined (torch's documentation of `topk`, and of `sort` that is not
stable)."""

_KEEPS_TENSORS = (
    "the module is at fault: once exported, it cannot be called again ({}), so forward keeps tensors from one call to"
    " the next; pass them through its inputs and outputs"
)


@dataclass(frozen=True)
class ModuleRun:
    """The results of calling a module.

    outputs: All tensors that it returns, in the order of its program's outputs; None where it cannot be called again.
    gaps: What keeps a file from computing what the module does, in a sentence each; the export is not at fault.
    notes: What is worth saying, and keeps nothing from agreeing.
    """

    outputs: Sequence[torch.Tensor] | None
    gaps: Sequence[str]
    notes: Sequence[str]


def run_module(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> ModuleRun:
    """Call a module on copies of its inputs, and look at what else it changes; afterwards it is as it was.

    module: In the mode that it was exported in.
    inputs: By name.
    """
    gaps, notes = [], [*_left_training(module)]
    with as_it_was(module) as changed:
        given = {name: one.clone() for name, one in inputs.items()}
        try:
            outputs = _called(module, given)
        except Exception as error:
            return ModuleRun(None, [_KEEPS_TENSORS.format(first_line(error, 120))], notes)
        notes += _in_place(inputs, given)
        written = changed()
        off = _off_next_time(module, inputs, outputs)
        draws = off is not None and _off_next_time(module, inputs, outputs, seed=0) is None
    if draws:
        gaps.append(
            f"the module is at fault: forward draws random numbers of Python's `random` or of NumPy (the next time it"
            f" returns something else, {off}); the file has those of its export. Leave them out in evaluation, or pass"
            " them in"
        )
    elif written and off is None:
        notes.append(
            f"forward writes {listed(written)}, which changes nothing that it returns; the file leaves that out"
        )
    elif written:
        gaps.append(
            f"the module is at fault: forward writes {listed(written)}, and returns something else the next time"
            f" ({off}); the file keeps what it was exported with. Pass that through forward's inputs and outputs, or"
            " write it in training alone"
        )
    elif off is not None:
        gaps.append(
            f"the module is at fault: called again with the same inputs, it returns something else ({off}), so forward"
            " reads something that is no input, parameter or buffer (what it keeps between calls, or a clock); the file"
            " has what that was at export"
        )
    return ModuleRun(outputs, gaps, notes)


def against_program(run: ModuleRun, outputs: Sequence[torch.Tensor]) -> Iterator[str]:
    """Whether the program returns what its module does: else the exporter to ONNX is not at fault."""
    if run.outputs is None:
        return
    if len(run.outputs) != len(outputs):
        yield f"the module returns {len(run.outputs)} tensors, and its program {len(outputs)}"
        return
    for number, (own, other) in enumerate(zip(run.outputs, outputs, strict=True)):
        if own.shape != other.shape or own.dtype != other.dtype:
            yield f"output {number} of the module is {_type(own)}, its program's {_type(other)}"
        elif not _is_near(own, other):
            yield (
                f"torch.export itself changed what the module computes: output {number} is off by"
                f" {_relative(own, other):.2g}, before anything was exported to ONNX"
            )


def draws_of(program: ExportedProgram) -> list[fx.Node]:
    """The nodes of a program that draw random numbers."""
    return [node for node in program.graph.nodes if is_call(node) and _draws(node)]


TAKEN = "lockstep_taken"
"""The key in `fx.Node.meta` for the branches of a node that a run has taken: True, False or both."""


def is_branching(node: fx.Node) -> bool:
    """Return whether a node is a `torch.cond`, which computes one of two branches."""
    return node.op == "call_function" and node.target is torch.ops.higher_order.cond


def program_gaps(program: ExportedProgram) -> Iterator[str]:
    """Return what of a program no run on these inputs shows, with its places: draws, norms, branches."""
    for node in program.graph.nodes:
        taken = node.meta.get(TAKEN, set())
        if is_branching(node) and len(taken) < 2:
            which = f"for {not next(iter(taken))}" if taken else "that these inputs do not take"
            yield f"the branch {which} of {place_of(node)} was not compared: give inputs that take it"
    places = [place_of(node) for node in draws_of(program)]
    if places:
        yield (
            f"the module is at fault: forward draws random numbers ({listed(places)}), and the file draws others; all"
            " else was compared with the file's. Leave them out in evaluation, or pass them in"
        )
    places = [place_of(node) for node in program.graph.nodes if is_call(node) and _trains(node)]
    if places:
        yield (
            f"the module is at fault: it normalises by the statistics of the batch, as in training ({listed(places)});"
            " set that layer to evaluation"
        )


def order_notes(program: ExportedProgram, value_of: Callable[[fx.Node], Any]) -> Iterator[str]:
    """Operators that write several values to one place, so that the order of writing decides.

    program: What was exported.
    value_of: What a node returned, as an array.
    """
    places = [
        place_of(node) for node in program.graph.nodes if is_call(node) and _repeats(node, value_of)
    ]
    if places:
        yield (
            f"warning: {listed(places)} writes several values to one place with these inputs; which of them stays is"
            " not defined, and another runtime or device may choose another: accumulate, or give each place one value"
        )


def tie_notes(ties: Sequence[fx.Node]) -> Iterator[str]:
    """Operators that choose among equal values, of which the file chose others than torch."""
    if ties:
        yield (
            f"warning: {listed([place_of(one) for one in ties])} chooses among equal values with these inputs; which"
            " it takes is not defined, and another runtime or device may take others; all else was compared with the"
            " file's"
        )


def choices_of(program: ExportedProgram) -> list[fx.Node]:
    """The nodes of a program that choose among values, and say which."""
    return [node for node in program.graph.nodes if str(node.target) in _CHOOSING]


def flat_tensors(returned: Any) -> list[torch.Tensor]:
    """All tensors in what a module returns, in the order of its program's outputs."""
    leaves = torch.utils._pytree.tree_leaves(returned)
    return [one for one in leaves if isinstance(one, torch.Tensor)]


# --------------------------------------------------------------------------------------- inside


def _off_next_time(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Sequence[torch.Tensor],
    seed: int = 1,
) -> str | None:
    """How far what a module returns at its next call is off, in words; None where it is not."""
    try:
        again = _called(module, {name: one.clone() for name, one in inputs.items()}, seed)
    except Exception as error:
        return f"it fails: {first_line(error, 120)}"
    return furthest(outputs, again)


def _called(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], seed: int = 0
) -> list[torch.Tensor]:
    """What a module returns, copied, with the same random numbers of torch each time, and others by their seed."""
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        _seeded(seed),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # its own, and not of the export
        torch.manual_seed(0)
        outputs = [one.clone() for one in flat_tensors(module(**inputs))]
    if any(isinstance(one, FakeTensor) for one in outputs):
        raise ValueError("it returns tensors of torch.export's trace")
    return outputs


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python and of NumPy; afterwards they are as they were."""
    before, numbers = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numbers)


@contextlib.contextmanager
def as_it_was(module: torch.nn.Module) -> Iterator[Callable[[], list[str]]]:
    """Put parameters and buffers back afterwards; gives what tells the names of those that are others by now."""
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    before = Values()  # large ones in files: a second module may not fit into memory
    for name, one in held.items():
        before.add(name, array_of(one))

    def is_other(name: str, now: torch.Tensor) -> bool:
        return not _is_same(tensor_of(before.get(name)), now.detach())

    def changed() -> list[str]:
        now = dict(module.named_parameters()) | dict(module.named_buffers())
        return [name for name in held if is_other(name, now[name])]

    try:
        yield changed
    finally:
        with torch.no_grad(), before:
            for name, one in held.items():
                if is_other(name, one):
                    one.copy_(tensor_of(before.get(name)))
        for name, one in module.named_buffers():
            if one is not held[name]:  # bound anew
                owner, _, last = name.rpartition(".")
                setattr(module.get_submodule(owner), last, held[name])


def _left_training(module: torch.nn.Module) -> Iterator[str]:
    left = [
        name for name, one in module.named_modules() if one.training and not len([*one.children()])
    ]
    if left and not module.training:
        yield f"in training mode though the model is not, as their train() refuses: {listed(left)}"


def _in_place(
    before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    changed = [name for name in before if not _is_same(before[name], after[name])]
    if changed:
        yield (
            f"forward changes its {'input' if len(changed) == 1 else 'inputs'} {listed(changed)} in place; copies were"
            " compared, and the file leaves its inputs as they are"
        )


def _draws(node: fx.Node) -> bool:
    """Whether a node draws: dropout and its kin in training alone, and not where nothing is dropped."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = arguments_of(node)
    is_off = False in (given.get("train"), given.get("training")) or given.get("p") == 0
    return not is_off and given.get("dropout_p") != 0


def _trains(node: fx.Node) -> bool:
    """Whether a node normalises by the statistics of its batch."""
    given = arguments_of(node)
    return (
        "running_mean" in given
        and given["running_mean"] is not None
        and given.get("training") is True
    )


def _repeats(node: fx.Node, value_of: Callable[[fx.Node], Any]) -> bool:
    """Whether a scatter that does not accumulate is given the same index twice, with values of their own."""
    given, name = arguments_of(node), str(node.target)
    values = given.get("src", given.get("source", given.get("values")))
    if not isinstance(values, fx.Node) or np.size(value_of(values)) < 2 or given.get("accumulate"):
        return False
    if name.startswith("aten.index_put."):
        indices = [value_of(one) for one in given["indices"] if one is not None]
        whole = [np.asarray(one) for one in indices if one is not None]
        if len(whole) < len(indices) or any(one.dtype == bool for one in whole):
            return False
        rows = np.stack([one.ravel() for one in np.broadcast_arrays(*whole)])
        return bool(np.unique(rows, axis=1).shape[1] < rows.shape[1])
    if name not in ("aten.scatter.src", "aten.index_copy.default"):
        return False
    index = np.asarray(value_of(given["index"]))
    axis = given["dim"] if index.ndim > 1 else 0
    ordered = np.sort(index, axis=axis) if index.ndim else index.reshape(1)
    return bool((np.diff(ordered, axis=axis if index.ndim else 0) == 0).any())


def place_of(node: fx.Node) -> str:
    own = next(
        (str(one) for one in stack_of(node) if not one.library and not one.file.startswith("<")), ""
    )
    return f"{operator_name(node)} of {module_of(node)[0] or 'the model'}" + (
        f", {own}" if own else ""
    )


def furthest(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> str | None:
    """How far outputs are off others, in words; None where they are equal but for rounding."""
    if [_type(one) for one in some] != [_type(one) for one in others]:
        return "of other shapes"
    off = [_relative(*pair) for pair in zip(some, others, strict=True) if not _is_near(*pair)]
    return f"off by {max(off):.2g}" if off else None


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(
        torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    )


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return relative_distance(array_of(one), array_of(other))


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    exact = not (one.is_floating_point() or one.is_complex())
    return _relative(one, other) <= (0.0 if exact else _ROUNDINGS * torch.finfo(one.dtype).eps)
