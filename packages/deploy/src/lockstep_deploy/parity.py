"""Compare an exported model with its module: both as recordings, judged by the main job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram

from lockstep.compare import (
    Comparison,
    Finding,
    Kind,
    NotCompared,
    Outcome,
    Told,
    Verdict,
    compare_recordings,
    verdict_of,
)
from lockstep.errors import UsageError
from lockstep.judging import Judge, measure_noise
from lockstep.recorder import module_of
from lockstep.recordings import MEMORY_BYTES, Role, opened
from lockstep.rerun import LocalErrorJudge, RerunsApart
from lockstep.terminal import listed
from lockstep_deploy.as_run_judge import AsRunJudge
from lockstep_deploy.calls import (
    WrittenRun,
    array_of,
    computing,
    fused_name,
    is_call,
    operator_name,
    produced_by,
    tensor_of,
)
from lockstep_deploy.exported_run import ExportedRun, run_as_user, values_of
from lockstep_deploy.model_file import dtype_name
from lockstep_deploy.module_run import (
    against_program,
    choices_of,
    draws_of,
    order_notes,
    program_gaps,
    run_module,
    tie_notes,
)
from lockstep_deploy.node_values import (
    NamedValues,
    NodeValues,
    Segment,
    Values,
    results_of,
    segments_of,
    write_operators,
    write_segments,
)
from lockstep_deploy.program_run import ProgramRun
from lockstep_deploy.runtime import Session, Settings
from lockstep_deploy.sixteen_bits import in_single_precision

_SHOWN = 6
_DRAWS = 3
"""How often a program is run again for its noise."""

REFERENCE, PLAIN, BESIDE, AS_RUN = "eager", "plain", "eager-as-run", "as-run"
"""Names of recordings: torch and the model as rules wrote it, torch and the model as it runs."""


@dataclass(frozen=True)
class Parity:
    """The result of comparing a model with its program.

    comparison: By the main job.
    operators: How many operators the program has.
    compared: How many of them were held against a value of the model.
    """

    comparison: Comparison
    operators: int
    compared: int


class ParityRuns:
    """An exported model beside its program, each run on the same inputs and written as a recording.

    program: What was exported.
    inputs: By name.
    folder: Where recordings are written.
    module: What the program was made of: what it returns is compared with the program, and what of it no file can
        repeat is said. None where it is not there.

    is_emulated: Whether the model was computed in float32, each result rounded: the runtime has no kernels for its
        bfloat16.
    """

    def __init__(
        self,
        program: ExportedProgram,
        inputs: Mapping[str, torch.Tensor],
        folder: Path,
        module: torch.nn.Module | None = None,
    ) -> None:
        self._program, self._inputs, self._folder = program, inputs, folder
        self._arrays = {name: array_of(tensor) for name, tensor in inputs.items()}
        self._called = None if module is None else run_module(module, inputs)
        self.is_emulated = False

    def plain(self, model: Any) -> Parity:
        """Hold a model against the program operator by operator, nothing of it optimised.

        Raises UsageError if the runtime does not take the model.
        """
        eager, exported = self._written(REFERENCE), self._written(PLAIN)
        with Values() as own, Values() as others:
            alone = self._in_single_precision(model, torch.float16, torch.bfloat16)
            run = ExportedRun(alone, self._program, self._arrays, others)
            ran = run.beside = self._run(own, run)
            write_operators(self._program, ran, eager)
            without = write_operators(self._program, run, exported)
        found = compare_recordings(eager.finish(), exported.finish())
        notes = [*_left_out(without), *order_notes(self._program, ran.value), *tie_notes(ran.ties)]
        return self._parity(found, ran, notes, _other_types(ran, run))

    def loaded(self, program: ExportedProgram) -> Parity:
        """Hold a program that was read back against the one that was written, operator by operator."""
        eager, read = self._written(REFERENCE), self._written(PLAIN)
        with Values() as own, Values() as others:
            ran = ProgramRun(self._program, self._inputs, own)
            write_operators(self._program, ran, eager)
            write_operators(program, ProgramRun(program, self._inputs, others), read)
        return self._parity(compare_recordings(eager.finish(), read.finish()), ran, [])

    def as_run(self, model: Any, settings: Settings) -> Parity:
        """Hold the graph that the runtime really runs against the program, wherever that still has its values.

        Between two of them the runtime may have fused anything, so rounding there is measured: the program is run
        again with every number that it is given and holds moved to a neighbour at random.

        Raises UsageError if the runtime does not take the model.
        """
        eager, exported = self._written(BESIDE), self._written(AS_RUN)
        noise = []
        returned = None
        if _has(self._program, torch.bfloat16):
            returned = self._run_in_bfloat16(model, settings)
            self.is_emulated = returned is None
            model = self._in_single_precision(model, torch.bfloat16)
        with Values() as own, Values() as others:
            run = run_as_user(model, self._program, self._arrays, others, settings, returned)
            ran = run.beside = self._run(own, run)
            every = segments_of(self._program, lambda node: is_left(node, ran, run))
            segments = [one for one in every if is_tensor(one.last)]
            held = changed(segments, ran, run)
            write_segments(segments, ran, eager, held)
            write_segments(segments, run, exported, held)
            for number in range(_DRAWS):
                written = self._written(f"noise-{number}")
                with Values() as drawn:
                    draw = np.random.default_rng(number)
                    write_segments(segments, self._run(drawn, run, draw), written, held)
                noise.append(written.finish())
        found = self._compared_as_run(eager.finish(), exported.finish(), noise)
        operators = [one for one in computing(self._program) if is_call(one) and is_tensor(one)]
        notes = [*_fused_away(len(operators), len(segments)), *what_is_in(segments, found)]
        notes += tie_notes(ran.ties)
        parity = self._parity(found, ran, notes, _other_types(ran, run))
        return replace(parity, operators=len(operators))

    def _compared_as_run(self, eager: Path, exported: Path, noise: Sequence[Path]) -> Comparison:
        """Compare with what rounding was measured; single operators of single precision are run again besides."""
        reference = opened("reference", eager)
        runs = [opened("noise", one) for one in noise]
        site_noise = measure_noise(reference, runs, steps=None, read_tensors=True)
        judge: Judge = AsRunJudge(site_noise)
        if not _has(self._program, torch.float16, torch.bfloat16):
            judge = LocalErrorJudge(judge, memory_bytes=MEMORY_BYTES, reruns=RerunsApart)
        found: Comparison = compare_recordings(reference, exported, judge=judge)
        return found

    def _run_in_bfloat16(self, model: Any, settings: Settings) -> dict[str, Any] | None:
        """What a model with values of bfloat16 returns; None where the runtime has no kernels for it, or no form."""
        given = (*model.graph.input, *model.graph.output)
        if any(dtype_name(one.type.tensor_type.elem_type) == "bfloat16" for one in given):
            return None
        try:
            return Session(model, settings).run(self._arrays)
        except UsageError:
            return None

    def _in_single_precision(self, model: Any, *dtypes: torch.dtype) -> Any:
        """A model with each operator of 16 bits in single precision, and its result rounded."""
        for dtype in dtypes:
            if _has(self._program, dtype):
                names = values_of(self._program, model, dtype)
                model = in_single_precision(model, names, str(dtype).removeprefix("torch."))
        return model

    def _run(
        self, values: Values, run: ExportedRun, draw: np.random.Generator | None = None
    ) -> ProgramRun:
        """The program run by torch, with the random numbers that a run of the model drew."""
        drawn, chosen = (
            {one.name: found for one in nodes if (found := _as_returned(one, run)) is not None}
            for nodes in (draws_of(self._program), choices_of(self._program))
        )
        return ProgramRun(self._program, self._inputs, values, draw, drawn, chosen)

    def _own(self, ran: ProgramRun) -> Sequence[torch.Tensor]:
        """What the program returns by torch's own choices."""
        if not ran.ties:
            return ran.outputs
        with Values() as values:
            return ProgramRun(self._program, self._inputs, values).outputs

    def _written(self, name: str) -> WrittenRun:
        return WrittenRun(self._folder / name, ["lockstep", "export", f"({name})"])

    def _parity(
        self, found: Comparison, ran: ProgramRun, notes: Iterable[str], gaps: Iterable[str] = ()
    ) -> Parity:
        gaps = [*gaps, *program_gaps(self._program), *without_numbers(ran.returned())]
        said = [*notes, *nan_notes(ran.returned())]
        if self._called is not None:
            own = [] if draws_of(self._program) else against_program(self._called, self._own(ran))
            gaps += [*self._called.gaps] or [*own]
            said += self._called.notes
        comparison = with_gaps(found, gaps, said)
        return Parity(comparison, *_counts(comparison))


def _as_returned(node: fx.Node, run: ExportedRun) -> Any:
    """What a node of the program would return, of the values that a run of the model has for it; None without them."""
    results, meant = results_of(node, run), node.meta.get("val")
    tensors = [tensor_of(one) for one in results.values()]
    if not tensors or not isinstance(meant, (tuple, list)):
        return tensors[0] if tensors else None
    used = [one.index for one in produced_by(node)]
    if len(used) != len(tensors):
        return None
    return tuple(dict(zip(used, tensors, strict=True)).get(at) for at in range(len(meant)))


def is_left(node: fx.Node, ran: NamedValues, run: NodeValues) -> bool:
    """Whether a graph still has a node's value; a parameter also where another one under its name is read alone.

    An optimiser that folds a batch norm into a convolution may leave the new weight under the old one's name. What is
    computed with it is judged by its result, like all else that became one operator. Where the operator that reads the
    parameter is there as the program has it, nothing was folded, and the parameter is another one.
    """
    if run.value(node) is None or node.op != "placeholder" or _is_same(node, ran, run):
        return run.value(node) is not None
    return any(
        run.value(user) is not None
        and all(run.value(one) is not None for one in user.all_input_nodes if one is not node)
        for user in node.users
        if is_call(user)
    )


def _is_same(node: fx.Node, ran: NodeValues, run: NodeValues) -> bool:
    own, other = ran.value(node), run.value(node)
    return own is None or np.array_equal(np.asarray(own), np.asarray(other), equal_nan=True)


def changed(segments: Iterable[Segment], ran: NamedValues, run: NodeValues) -> list[str]:
    """Full names of the parameters that are others in the graph that runs, and are read as they are."""
    begins = {node for one in segments for node in one.begins if node.op == "placeholder"}
    names = {node.name: ran.full_name(node) for node in begins if not _is_same(node, ran, run)}
    return [name for name in names.values() if name is not None]


def _has(program: ExportedProgram, *dtypes: torch.dtype) -> bool:
    """Whether a program has a tensor of one of these dtypes."""
    made = (node.meta.get("val") for node in program.graph.nodes)
    return any(isinstance(one, torch.Tensor) and one.dtype in dtypes for one in made)


def is_tensor(node: fx.Node) -> bool:
    """Whether a node makes tensors, and no number such as an extent."""
    made = node.meta.get("val")
    return not isinstance(made, (bool, int, float)) and not hasattr(made, "node")


def with_gaps(comparison: Comparison, gaps: Sequence[str], notes: Sequence[str]) -> Comparison:
    """A comparison with what else was not compared; it agrees only where every operator was judged.

    comparison: By the main job, which asks for losses, gradients and parameters: a program has none but the last.
    gaps: What keeps it from agreeing, in a sentence each.
    notes: What does not, and is worth saying.
    """
    open_ones = [one for one in comparison.findings if _is_open(one)]
    sentences = list(gaps)
    if open_ones:
        first = open_ones[0]
        sentences.append(
            f"{len(open_ones)} tensors of operators could not be judged, first at {first.pair.present.site}:"
            f" {first.reason}"
        )
    operators, compared = _counts(comparison)
    if operators and not compared:
        sentences.append("no operator was compared, only what the model returns")
    not_compared = (*comparison.not_compared, *map(NotCompared.of, sentences))
    differs = comparison.verdict is Verdict.DIVERGED
    return replace(
        comparison,
        verdict=verdict_of(differs=differs, not_compared=not_compared),
        not_compared=not_compared,
        notes=(*comparison.notes, *map(Told.of, notes)),
        ends=None,  # a program has no course of training
    )


def _is_open(finding: Finding) -> bool:
    return finding.outcome is Outcome.INCOMPARABLE and finding.kind is not Kind.AMPLIFIED


def _counts(comparison: Comparison) -> tuple[int, int]:
    """Operators of the reference, and those of them that were held against a value."""
    every, compared = set(), set()
    for one in comparison.findings:
        record = one.pair.reference
        if record is not None and record.role is Role.OUTPUT and record.site.op != "batch":
            every.add(record.site)
            if one.pair.candidate is not None and one.outcome in (Outcome.AGREE, Outcome.DIFFER):
                compared.add(record.site)
    return len(every), len(compared)


def _fused_away(every: int, kept: int) -> Iterable[str]:
    if every > kept:
        yield (
            f"{every - kept} of {every} operators were fused or folded away in the graph that runs, and were compared"
            " where what they go into comes out"
        )


def what_is_in(segments: Sequence[Segment], found: Comparison) -> Iterable[str]:
    """What the first origin computes in one go, where that is several operators of the program."""
    if not found.origins:
        return
    first = found.origins[0]
    for one in segments:
        module, name = module_of(one.last)[0], fused_name(one.last)
        if one.is_fused and (module, name) == (first.module, first.op):
            inside = [
                f"{module_of(node)[0] or '(model)'} / {operator_name(node)}" for node in one.inside
            ]
            yield f"{name} of {module or '(model)'} is {listed(inside, _SHOWN)} in one go"
            return


def _other_types(ran: ProgramRun, run: ExportedRun) -> Iterable[str]:
    """Results of whole numbers that have another dtype in the file; floating ones are judged by their size."""
    for number, (own, other) in enumerate(zip(ran.returned(), run.returned(), strict=False)):
        if own.dtype != other.dtype and {own.dtype.kind, other.dtype.kind} & set("iub"):
            yield f"output {number} is of {other.dtype} in the file, and of {own.dtype} in the module"


def nan_notes(returned: Sequence[Any]) -> Iterator[str]:
    """Return a sentence for each output that has NaN in the reference: NaN in both counts as equal."""
    for at, count in _nan_counts(returned):
        if count < returned[at].size:
            yield f"output {at} has {count} NaN of {returned[at].size}: where both have NaN, nothing was compared"


def without_numbers(returned: Sequence[Any]) -> Iterator[str]:
    """Return a sentence for each output that is NaN all over, of which nothing was compared."""
    for at, count in _nan_counts(returned):
        if count == returned[at].size:
            yield f"output {at} is NaN all over, so nothing of it was compared: give other inputs"


def _nan_counts(returned: Sequence[Any]) -> Iterator[tuple[int, int]]:
    for at, array in enumerate(returned):
        count = int(np.isnan(array).sum()) if array.dtype.kind in "fc" else 0
        if count:
            yield at, count


def _left_out(without: Sequence[str]) -> Iterable[str]:
    if without:
        yield (
            f"{len(without)} operators have no value of their own in the exported model and were compared with what"
            f" follows them: {listed(without)}"
        )
