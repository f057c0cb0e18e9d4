"""Run two models that are given on the same inputs, pair what their nodes compute, and compare by the main job."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import fx
from torch.utils import _pytree as pytree

from lockstep.compare import Comparison, Verdict, WhatNext, command_line, compare_recordings
from lockstep.errors import OutputExistsError, UsageError
from lockstep.judging import Judge, measure_noise
from lockstep.plugin import AskedModel
from lockstep.recordings import MEMORY_BYTES, opened
from lockstep.rerun import LocalErrorJudge, RerunsApart
from lockstep_deploy.as_run_judge import AsRunJudge
from lockstep_deploy.calls import Array, WrittenRun, array_of, computing, is_call, tensor_of
from lockstep_deploy.exporting import program_of, without_writes
from lockstep_deploy.free_axes import check_extents, extents_to_draw
from lockstep_deploy.given_models.held_tensors import (
    held_otherwise,
    held_pairs,
    name_of,
    taken_by_pairs,
    users,
)
from lockstep_deploy.given_models.onnx_program import OnnxProgram, OnnxRun
from lockstep_deploy.given_models.pairing import Value, paired, same_kind
from lockstep_deploy.inputs import checked, input_sets, read_inputs
from lockstep_deploy.model_file import MOST_BYTES, open_model
from lockstep_deploy.model_source import model_source
from lockstep_deploy.module_run import (
    ModuleRun,
    against_program,
    draws_of,
    program_gaps,
    run_module,
)
from lockstep_deploy.node_values import Held, NodeValues, Values, segments_of, write_segments
from lockstep_deploy.noted import untaken_branches
from lockstep_deploy.parity import (
    changed,
    is_left,
    is_tensor,
    nan_notes,
    what_is_in,
    with_gaps,
    without_numbers,
)
from lockstep_deploy.program_run import ProgramRun
from lockstep_deploy.runtime import checked_sizes

_T = TypeVar("_T")

_DRAWS = 3
"""How often the reference is run again for its noise."""


@dataclass
class Subject:
    """A model that is compared.

    name: As it was given.
    program: Its nodes: an `ExportedProgram`, or an `OnnxProgram`.
    inputs: What it is called with, by name, in order.
    said: What was done to it.
    called: The module that the program was made of, called as its user calls it; None where it has none.
    order: Which of its outputs stands where: those of a mapping by their keys, in the order of the model it is held to.
    """

    name: str
    program: Any
    inputs: dict[str, Array]
    said: Sequence[str] = ()
    called: ModuleRun | None = None
    order: Sequence[int] = ()

    @property
    def is_file(self) -> bool:
        """Whether it is run by the runtime, and not by torch."""
        return isinstance(self.program, OnnxProgram)

    def gaps(self, run: NodeValues) -> list[str]:
        """What of it no run shows that was made, a sentence each, and how its program is off its module."""
        if self.is_file:
            return list(untaken_branches(self.program.model))
        gaps = list(program_gaps(self.program))
        if self.called is not None and not draws_of(self.program):
            outputs = [tensor_of(one) for one in run.returned()]
            gaps += [*self.called.gaps, *against_program(self.called, outputs)]
        return gaps

    def run(self, values: Values, draw: np.random.Generator | None = None) -> ProgramRun | OnnxRun:
        """Run it, with every node's value; `draw` moves all numbers that it is given or holds."""
        if self.is_file:
            return OnnxRun(self.program, self.inputs, values, draw)
        tensors = {name: tensor_of(one) for name, one in self.inputs.items()}
        return ProgramRun(self.program, tensors, values, draw)

    def values(self, run: NodeValues) -> list[Value]:
        """What its nodes compute, in order."""
        used = computing(self.program)
        return [
            Value(name, array, tuple(_sources(node)))
            for node in self.program.graph.nodes
            if is_call(node) and node in used
            for name, array in _arrays_of(node, run)
        ]

    def returned(self) -> list[str]:
        """Names of the values that it returns."""
        by_name = {node.name: node for node in self.program.graph.nodes}
        return self._in_order([name_of(by_name[spec.arg.name]) for spec in self._returning()])

    def outputs(self, run: NodeValues) -> list[Array]:
        """What a run of it returned, in the order of `returned`."""
        return self._in_order(run.returned())

    def places(self) -> list[str]:
        """Where each output stands in what it returns, as "['logits']"; none for a file, which returns a list."""
        if self.is_file:
            return []
        tree = self.program.call_spec.out_spec
        whole = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
        at = {leaf: pytree.keystr(path) for path, leaf in pytree.tree_leaves_with_path(whole)}
        specs = [one for one in self.program.graph_signature.output_specs if _is_returned(one)]
        taken = set(map(id, self._returning()))
        return [at[number] for number, one in enumerate(specs) if id(one) in taken]

    def _returning(self) -> list[Any]:
        """What tells of each tensor that is returned."""
        names = {node.name for node in self.program.graph.nodes}
        specs = self.program.graph_signature.output_specs
        return [
            one for one in specs if _is_returned(one) and getattr(one.arg, "name", None) in names
        ]

    def _in_order(self, some: Sequence[_T]) -> list[_T]:
        if len(self.order) != len(some):
            return list(some)
        return [some[at] for at in self.order]


def _is_returned(spec: Any) -> bool:
    return bool(spec.kind.name == "USER_OUTPUT")


def _order_as(first: Subject, second: Subject) -> list[int]:
    """Which of the second model's outputs has the key of each of the first one's; none where they have others."""
    ours, theirs = first.places(), second.places()
    if len(set(theirs)) < len(theirs) or sorted(ours) != sorted(theirs):
        return []
    return [theirs.index(one) for one in ours]


def compare_models(reference: AskedModel, candidate: AskedModel, keep: Path | None) -> Comparison:
    """Compare two models; their recordings stay in `keep`.

    Raises UsageError if one cannot be loaded or run, or they take other inputs.
    """
    first = _subject(reference, None)
    second = _subject(candidate, first)
    second.order = _order_as(first, second)
    with tempfile.TemporaryDirectory(prefix="lockstep-models-") as aside:
        found = _Compared(first, second, Path(aside) / "first", have_parted=False).comparison()
        last = Path(aside) / "first"
        if found.verdict is Verdict.DIVERGED:  # now what is far off is paired, too
            last = Path(aside) / "again"
            again = _Compared(first, second, last, have_parted=True).comparison()
            found = again if again.verdict is Verdict.DIVERGED else found
        if keep is not None:
            _keep(last, keep)
    return _with_next(found, reference, candidate, keep)


def _keep(folder: Path, keep: Path) -> None:
    """Move both recordings to where they stay."""
    taken = [keep / name for name in (_REFERENCE, _CANDIDATE) if (keep / name).exists()]
    if taken:
        raise OutputExistsError(f"{taken[0]}: is there; give another folder with --keep")
    try:
        keep.mkdir(parents=True, exist_ok=True)
        for name in (_REFERENCE, _CANDIDATE):
            shutil.copytree(folder / name, keep / name)
    except OSError as error:
        raise OutputExistsError(
            f"{keep}: cannot be written ({error.strerror or error}); give another folder"
        ) from error


def _with_next(
    found: Comparison, reference: AskedModel, candidate: AskedModel, keep: Path | None
) -> Comparison:
    """What leads on: the page of both recordings, or to keep them."""
    if keep is not None:
        line = command_line("report", keep / _REFERENCE, keep / _CANDIDATE, "-o", "models.html")
        return replace(found, what_next=WhatNext("look at all nodes in a page", line))
    given = [word for one in reference.inputs for word in ("--inputs", one)]
    line = command_line("compare", reference.given, candidate.given, *given, "--keep", "models")
    return replace(found, what_next=WhatNext("keep both recordings, for a page of all nodes", line))


_REFERENCE, _CANDIDATE = "reference", "candidate"


class _Compared:
    """Two models, run and paired."""

    def __init__(self, first: Subject, second: Subject, folder: Path, *, have_parted: bool) -> None:
        self._first, self._second, self._folder = first, second, folder
        self._have_parted = have_parted
        folder.mkdir()

    def comparison(self) -> Comparison:
        """Run both, write what is paired as recordings, and compare them."""
        first, second = self._first, self._second
        with Values() as own, Values() as others:
            ran, other = first.run(own), second.run(others)
            run = _PairedRun(first, second, ran, other, have_parted=self._have_parted)
            gaps = [*first.gaps(ran), *second.gaps(other), *run.gaps]
            every = segments_of(first.program, lambda node: is_left(node, ran, run))
            segments = [one for one in every if is_tensor(one.last)]
            held = changed(segments, ran, run)
            write = partial(write_segments, segments, held=held)
            reference = self._written(_REFERENCE, lambda to: write(ran, to))
            candidate = self._written(_CANDIDATE, lambda to: write(run, to))
            noise = [
                self._written(f"noise-{at}", partial(self._drawn, at, write))
                for at in range(_DRAWS)
            ]
        found = self._judged(reference, candidate, noise)
        operators = [one for one in computing(first.program) if is_call(one) and is_tensor(one)]
        notes = [
            *first.said,
            *second.said,
            *(() if self._have_parted else held_otherwise(ran.held(), other.held())),
            *_in_another_dtype(first.outputs(ran), second.outputs(other)),
            *what_is_in(segments, found),
            *nan_notes(ran.returned()),
        ]
        if len(operators) > len(segments):
            notes.append(
                f"{len(operators) - len(segments)} of {len(operators)} operators have no value of their own in"
                f" {second.name}, and were compared with what follows them"
            )
        return with_gaps(found, gaps, notes)

    def _drawn(self, at: int, write: Callable[..., None], to: WrittenRun) -> None:
        with Values() as drawn:
            write(self._first.run(drawn, np.random.default_rng(at)), to)

    def _written(self, name: str, write: Callable[[WrittenRun], None]) -> Path:
        written = WrittenRun(self._folder / name, ["lockstep", "compare", f"({name})"])
        write(written)
        return written.finish()

    def _judged(self, reference: Path, candidate: Path, noise: Sequence[Path]) -> Comparison:
        """Compare with what rounding was measured; operators of torch are run again besides."""
        eager = opened("reference", reference)
        runs = [opened("noise", one) for one in noise]
        judge: Judge = AsRunJudge(measure_noise(eager, runs, steps=None, read_tensors=True))
        if not self._first.is_file:
            judge = LocalErrorJudge(judge, memory_bytes=MEMORY_BYTES, reruns=RerunsApart)
        found: Comparison = compare_recordings(eager, candidate, judge=judge)
        return found


class _PairedRun:
    """A run of the second model, its values as what the nodes of the first one return; `node_values.NodeValues`."""

    def __init__(
        self,
        first: Subject,
        second: Subject,
        ran: ProgramRun | OnnxRun,
        run: ProgramRun | OnnxRun,
        *,
        have_parted: bool,
    ) -> None:
        self._ran, self._outputs = ran, second.outputs(run)
        ours, theirs = first.values(ran), second.values(run)
        returned = first.returned(), second.returned()
        given = dict(zip(first.inputs, second.inputs, strict=True))
        self.gaps = list(_of_outputs(first, second, ran, run))
        pairs = dict(zip(*returned, strict=False))
        by_name = {one.name: one.array for one in theirs} | {
            name: np.asarray(array) for name, array in run.given().items()
        }
        names = paired(ours, theirs, pairs, given, have_parted=have_parted)
        self._found = {name: by_name[other] for name, other in names.items() if other in by_name}
        self._given = {name: second.inputs[other] for name, other in given.items()}
        alike = (
            None
            if have_parted
            else set(taken_by_pairs(users(first.program, ran), users(second.program, run), names))
        )
        self._held = held_pairs(ran.held(), run.held(), alike)

    def given(self) -> Mapping[str, Array]:
        """The inputs by the first model's names."""
        return self._given

    def held(self) -> Held:
        """What both hold, by the first model's names."""
        return self._held

    def value(self, node: fx.Node) -> Any:
        """What the second model has for a node of the first one; None for nothing."""
        if node.op == "placeholder":
            full = self._ran.full_name(node)
            if full is None:
                return self._given.get(name_of(node))
            return self._held[full]() if full in self._held else None
        own = self._ran.value(node)
        if isinstance(own, list):
            parts = [self._found.get(name) for name in _names_in(node, own)]
            return parts if any(one is not None for one in parts) else None
        return self._found.get(name_of(node))

    def returned(self) -> list[Array]:
        """What the second model returns."""
        return self._outputs


def _of_outputs(first: Subject, second: Subject, ran: NodeValues, run: NodeValues) -> Iterator[str]:
    """What models return that are no outputs of one kind: as many, of the same shapes, numbers or indices alike."""
    ours, theirs = first.outputs(ran), second.outputs(run)
    if len(ours) != len(theirs):
        yield f"{first.name} returns {len(ours)} tensors, and {second.name} {len(theirs)}"
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.shape != other.shape or not same_kind(one, other):
            yield (
                f"output {at} is {_type(one)} of {first.name}, and {_type(other)} of {second.name}"
            )
    yield from without_numbers(ours)


def _in_another_dtype(ours: Sequence[Array], theirs: Sequence[Array]) -> Iterator[str]:
    """Outputs that are kept in another dtype, of one kind."""
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.dtype != other.dtype and same_kind(one, other):
            yield f"output {at} is {_dtype(one)} in the reference, and {_dtype(other)} in the candidate"


def _dtype(array: Array) -> str:
    return "bfloat16" if array.dtype.kind == "V" else array.dtype.name


def _type(array: Array) -> str:
    return f"{_dtype(array)} {list(array.shape)}"


def _names_in(node: fx.Node, values: Sequence[Any]) -> list[str]:
    names = node.meta.get("onnx_values")
    return list(names) if names else [f"{node.name}__{at}" for at in range(len(values))]


def _arrays_of(node: fx.Node, run: NodeValues) -> Iterator[tuple[str, Array]]:
    value = run.value(node)
    if isinstance(value, list):
        named = zip(_names_in(node, value), value, strict=False)
        yield from ((name, one) for name, one in named if isinstance(one, np.ndarray))
    elif isinstance(value, np.ndarray):
        yield name_of(node), value


def _sources(node: fx.Node) -> Iterator[str]:
    """Names of the values that a node is computed from; a part of several by its own name."""
    for one in node.all_input_nodes:
        if is_call(one) or one.op == "placeholder":
            yield name_of(one)
        elif one.op == "call_function":
            whole, at = one.args[0], one.args[1]
            assert isinstance(whole, fx.Node)
            assert isinstance(at, int)
            names = whole.meta.get("onnx_values")
            yield names[at] if names else f"{whole.name}__{at}"


def _subject(asked: AskedModel, first: Subject | None) -> Subject:
    """A model with its inputs: its own, or those of the first one in order."""
    path = Path(asked.given)
    if path.suffix == ".onnx":
        return _of_file(asked, path, first)
    source = model_source(
        asked.given, factory=asked.factory, weights=asked.weights, trusted=asked.trusted
    )
    if first is not None:
        named = _as_asked(list(source.inputs) or list(first.inputs), first)
        tensors = source.bound(named)
    elif asked.inputs:
        tensors = source.bound(input_sets(asked.inputs, seed=asked.seed)[0])
    else:
        tensors = dict(source.inputs)
    if not tensors:
        raise UsageError(
            f"{source.name}: gives no inputs; say them with --inputs, as in x:float32[1,3,32,32]"
        )
    program = without_writes(program_of(source, tensors))
    arrays = {name: array_of(one) for name, one in tensors.items()}
    called = None if source.module is None else run_module(source.module, tensors)
    said = [*source.said, *(called.notes if called is not None else ())]
    return Subject(asked.given, program, arrays, said, called)


def _of_file(asked: AskedModel, path: Path, first: Subject | None) -> Subject:
    file = open_model(path)
    if first is None:
        free = extents_to_draw(file.facts)
        arrays = read_inputs(asked.inputs, file.inputs, seed=asked.seed, free=free)
    else:
        taken = _as_asked([one.name for one in file.inputs], first)
        arrays = checked(taken, file.inputs, option=f"{asked.given}: input")
    check_extents(file.facts, file.inputs, arrays)
    checked_sizes(file, arrays, MOST_BYTES)
    program = OnnxProgram(file.proto)
    return Subject(asked.given, program, arrays)


def _as_asked(names: Sequence[str], first: Subject) -> dict[str, Array]:
    """The first model's inputs by a second one's names: the same names, else the same order."""
    if len(names) != len(first.inputs):
        raise UsageError(
            f"the candidate takes {len(names)} inputs ({', '.join(names)}), and {first.name}"
            f" {len(first.inputs)} ({', '.join(first.inputs)})"
        )
    if set(names) == set(first.inputs):
        return {name: first.inputs[name] for name in names}
    return dict(zip(names, first.inputs.values(), strict=True))
