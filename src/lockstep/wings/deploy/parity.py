"""Whether an exported model computes what its module does: both as recordings, judged by the main job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Finding, Kind, Outcome, Verdict
from lockstep.core.site import Role
from lockstep.core.text import listed
from lockstep.wings.deploy.calls import WrittenRun, array_of
from lockstep.wings.deploy.exported_run import Unpartnered, write_exported_run
from lockstep.wings.deploy.exporting import Exported
from lockstep.wings.deploy.program_run import ProgramRun, run_program

REFERENCE, CANDIDATE = "eager", "exported"
"""Names of the two recordings in their folder."""


@dataclass(frozen=True)
class Parity:
    """What holding an exported model against its program found.

    Parameters
    ----------
    comparison
        By operator, the runtime's optimisation off.
    operators
        How many operators the program has.
    compared
        How many of them were held against the model's own value.
    """

    comparison: Comparison
    operators: int
    compared: int


def parity_of(
    exported: Exported,
    inputs: Mapping[str, torch.Tensor],
    folder: Path,
    module: torch.nn.Module | None = None,
) -> Parity:
    """Run a program by torch and its exported model by the runtime, and compare them operator by operator.

    Parameters
    ----------
    exported
        Program and model.
    inputs
        By name.
    folder
        Where both recordings are written, `eager` and `exported`.
    module
        What the program was made of; its outputs are held against the program's. None where it is not there.

    Raises
    ------
    UsageError
        If the runtime does not take the model.
    """
    eager = WrittenRun(folder / REFERENCE, ["lockstep", "export", "(eager)"])
    ran = run_program(exported.program, inputs, eager)
    reference = eager.finish()
    arrays = {name: array_of(tensor) for name, tensor in inputs.items()}
    run = WrittenRun(folder / CANDIDATE, ["lockstep", "export", "(onnxruntime)"])
    without = write_exported_run(exported.plain, exported.program, arrays, ran.numbers, run)
    comparison = compare_recordings(reference, run.finish())
    comparison = with_gaps(comparison, [*_module_gaps(module, inputs, ran)], [*_left_out(without)])
    return Parity(comparison, *_counts(comparison))


def with_gaps(comparison: Comparison, gaps: Sequence[str], notes: Sequence[str]) -> Comparison:
    """A comparison with what else was not compared; it agrees only where every operator was judged.

    Parameters
    ----------
    comparison
        By the main job, which asks for losses, gradients and parameters: a program has none but the last.
    gaps
        What keeps it from agreeing, in a sentence each.
    notes
        What does not, and is worth saying.
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
    verdict = comparison.verdict
    if verdict is Verdict.AGREE and sentences:
        verdict = Verdict.INCOMPARABLE
    return replace(
        comparison,
        verdict=verdict,
        not_compared=(*comparison.not_compared, *sentences),
        notes=(*comparison.notes, *notes),
        ends=None,  # a program has no course of training
    )


def _is_open(finding: Finding) -> bool:
    return (
        finding.outcome is Outcome.INCOMPARABLE
        and finding.pair.present.role is Role.OUTPUT
        and finding.kind is not Kind.AMPLIFIED
    )


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


def _left_out(without: Unpartnered) -> Iterable[str]:
    if without.operators:
        yield (
            f"{len(without.operators)} operators have no value of their own in the exported model and were compared"
            f" with what follows them: {listed(without.operators)}"
        )
    if without.held:
        yield f"{len(without.held)} parameters stand in the exported model under no name: {listed(without.held)}"


def _module_gaps(
    module: torch.nn.Module | None, inputs: Mapping[str, torch.Tensor], ran: ProgramRun
) -> Iterable[str]:
    """Whether the program itself returns what its module does: else the exporter is not at fault."""
    if module is None:
        return
    with torch.no_grad():
        returned = flat_tensors(module(**inputs))
    if len(returned) != len(ran.outputs):
        yield f"the module returns {len(returned)} tensors, and its program {len(ran.outputs)}"
        return
    for number, (own, other) in enumerate(zip(returned, ran.outputs, strict=True)):
        if own.shape != other.shape or own.dtype != other.dtype:
            yield f"output {number} of the module is {_type(own)}, its program's {_type(other)}"
        elif not _is_near(own, other):
            yield (
                f"torch.export itself changed what the module computes: output {number} is off by"
                f" {_relative(own, other):.2g}, before anything was exported to ONNX"
            )


def flat_tensors(returned: Any) -> list[torch.Tensor]:
    """All tensors in what a module returns, in the order of its program's outputs."""
    leaves = torch.utils._pytree.tree_leaves(returned)
    return [one for one in leaves if isinstance(one, torch.Tensor)]


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    left, right = array_of(one).astype("f8"), array_of(other).astype("f8")
    scale = max(float(np.linalg.norm(left)), float(np.linalg.norm(right)))
    return float(np.linalg.norm(left - right)) / scale if scale else 0.0


_ROUNDINGS = 1 << 12
"""Unit roundoffs that a program's outputs may be off its module's: the kernels are the same, or decomposed."""


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    unit = torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
    return bool(_relative(one, other) <= _ROUNDINGS * unit)
