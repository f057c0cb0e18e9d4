"""Running one recorded call again, forward and backward, in double precision or as it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.replay.calls.autocast import cast_of
from lockstep.replay.calls.doubles import WRITTEN_OUT
from lockstep.replay.calls.layouts import laid, laid_together
from lockstep.replay.calls.machine import HERE, Machine
from lockstep.replay.calls.rebuild import Rebuilt, tensors_in
from lockstep.replay.calls.recorded_tensors import (
    LARGE,
    double_of,
    in_a_row,
    load,
    random_state_of,
    rounds,
    widened,
)
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.torch_state import leaving_no_trace, torch_may_refuse

Alter = Callable[[torch.Tensor], torch.Tensor]
"""Changes a floating-point tensor before the call sees it: rounds or perturbs it."""

_TRUSTS_INDICES = re.compile(r"^aten\..*(backward|unpool|embedding_bag)")
"""Operators that are called with indices which an earlier one gave."""

_NO_INDEX = 101
"""Magnitude below which a whole number may stand for no index at all: losses ignore -100."""

_GRADIENTS = (Role.GRAD_INPUT, Role.PARAM_GRAD)


class Precision(Enum):
    """In which numbers a call is run again."""

    DOUBLE = "double precision"
    OWN = "the recorded dtypes"


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a re-run.

    outputs: By output index as recorded; what was written in place and buffers come behind the results.
    gradients: By input index and occurrence. Where several inputs have one content, the gradient of this one alone
        comes first, then the sum of theirs, which is what one tensor passed twice gets.
    """

    outputs: dict[int, torch.Tensor]
    gradients: dict[tuple[int, int], tuple[torch.Tensor, ...]] = field(default_factory=dict)


class Rerun:
    """One recorded call with its tensors, ready to be run again in several ways.

    Parameters
    ----------
    call
        With whole tensors.
    rebuilt
        The function and its arguments.
    """

    def __init__(self, call: Call, rebuilt: Rebuilt) -> None:
        self.call = call
        self._rebuilt = rebuilt
        self._loaded: dict[int, torch.Tensor] = {}
        self.cast = cast_of(call)

    def load(self, record: TensorRecord) -> torch.Tensor:
        """A tensor of the call; a small one is read once."""
        if record.content.numel >= LARGE:
            return load(record)
        if record.content.id not in self._loaded:
            self._loaded[record.content.id] = load(record)
        return self._loaded[record.content.id]

    def run(
        self,
        precision: Precision,
        *,
        backward: bool,
        alter: Alter | None = None,
        cast: bool = True,
        machine: Machine = HERE,
        without: int | None = None,
    ) -> Results:
        """Run the call again.

        Parameters
        ----------
        precision
            In which numbers.
        backward
            Whether gradients are wanted too.
        alter
            Applied to every floating-point input and to every gradient that comes in.
        cast
            Whether inputs are rounded to the output's dtype first, as autocast does.
        machine
            Where, and in which dtype; for double precision always here.
        without
            The input that is taken as zeros: a bias.

        Raises
        ------
        CannotReplay
            If torch refuses.
        """
        alone = leaving_no_trace(self.random_state())
        with torch_may_refuse(), alone, torch.set_grad_enabled(backward), machine.at_work():
            rounded = self.cast if cast and machine.dtype is None else None
            return self._run(precision, backward, alter, rounded, machine, without)

    def _run(
        self,
        precision: Precision,
        backward: bool,
        alter: Alter | None,
        cast: torch.dtype | None,
        machine: Machine,
        without: int | None,
    ) -> Results:
        self._check_indices()
        wanted = (
            {record.index for record in self.call.with_role(*_GRADIENTS)} if backward else set()
        )
        inputs = laid_together(
            {
                index: self._prepared(machine.moved(self.load(record)), precision, alter, cast)
                for index, record in self._rebuilt.inputs.items()
            },
            {index: record.layout for index, record in self._rebuilt.inputs.items()},
        )
        if without is not None:
            inputs[without] = torch.zeros_like(inputs[without])
        leaves = {
            index: leaf.requires_grad_()
            for index, leaf in inputs.items()
            if index in wanted and rounds(leaf)
        }
        cast = cast if precision is Precision.OWN else None
        passed = {
            index: leaf.to(cast) if cast and rounds(leaf) else leaf
            for index, leaf in inputs.items()
        }
        results, written = self._called(passed, precision, machine)
        outputs = dict(enumerate(results))
        for record in self.call.with_role(Role.OUTPUT, Role.BUFFER):
            position = record.index - len(results)
            if record.index not in outputs and position in written:
                outputs[record.index] = written[position]
        gradients = self._gradients(outputs, leaves, alter) if backward else {}
        kept = {
            key: in_a_row(value.detach().cpu())
            for key, value in outputs.items()
            if not backward or value.numel() < LARGE  # gradients are what is asked for
        }
        return Results(kept, gradients)

    def _called(
        self, tensors: Mapping[int, torch.Tensor], precision: Precision, machine: Machine
    ) -> tuple[list[torch.Tensor], Mapping[int, torch.Tensor]]:
        """What the function makes of tensors, and these tensors, which it may have written to."""
        function, dtype_of = self._rebuilt.function, machine.dtype_of
        if precision is Precision.DOUBLE:
            dtype_of = double_of
            function = WRITTEN_OUT.get(self._rebuilt.op, function)
        passed: Mapping[int, torch.Tensor] = {
            # What asks for its gradient must not be written to; all else is the call's own already.
            index: tensor.view_as(tensor) if tensor.requires_grad and tensor.is_leaf else tensor
            for index, tensor in tensors.items()
        }
        args, kwargs = self._rebuilt.filled(passed, dtype_of, machine.device)
        drawn_from = torch.get_rng_state()
        try:
            return tensors_in(function(*args, **kwargs)), passed
        except RuntimeError as error:
            if "in-place operation" not in str(error):
                raise
        torch.set_rng_state(drawn_from)  # it may have drawn before it was refused
        passed = {
            index: tensor.clone() if tensor.requires_grad and tensor.is_leaf else tensor
            for index, tensor in tensors.items()
        }
        args, kwargs = self._rebuilt.filled(passed, dtype_of, machine.device)
        return tensors_in(function(*args, **kwargs)), passed

    @property
    def can_draw_again(self) -> bool:
        """Whether the random numbers that the call drew can be drawn again here."""
        return self.random_state() is not None

    def random_state(self) -> torch.Tensor | None:
        """The generator's state before the call, if it was saved and is one of the CPU's generator."""
        return random_state_of(self.call)

    def _check_indices(self) -> None:
        """Refuse a native backward whose whole numbers point beyond every tensor of the call: it trusts them."""
        if not _TRUSTS_INDICES.search(self.call.site.op):
            return
        most = max(_NO_INDEX, *(record.content.numel for record in self.call.records))
        for record in self._rebuilt.inputs.values():
            tensor = self.load(record)
            whole = tensor.dtype in (torch.int32, torch.int64)
            if (
                whole
                and tensor.numel()
                and not -most <= int(tensor.min()) <= int(tensor.max()) < most
            ):
                raise CannotReplay(
                    "an index among its inputs points beyond every tensor of the call"
                )

    def _prepared(
        self,
        tensor: torch.Tensor,
        precision: Precision,
        alter: Alter | None,
        cast: torch.dtype | None,
    ) -> torch.Tensor:
        if not rounds(tensor):
            return tensor.clone()
        if precision is Precision.OWN:
            value = alter(tensor) if alter else tensor
            return value.clone() if value is tensor else value
        value = widened(tensor.to(cast) if cast is not None else tensor)
        value = alter(value) if alter else value
        return value.clone() if value is tensor else value

    def _gradients(
        self, outputs: dict[int, torch.Tensor], leaves: dict[int, torch.Tensor], alter: Alter | None
    ) -> dict[tuple[int, int], tuple[torch.Tensor, ...]]:
        """Gradients of every backward that went through the call."""
        arrived = self.call.with_role(Role.GRAD_OUTPUT)
        found: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}
        for occurrence in sorted({record.occurrence for record in arrived}):
            sources, cotangents = [], []
            for record in arrived:
                output = outputs.get(record.index)
                if record.occurrence != occurrence or output is None or not output.requires_grad:
                    continue
                gradient = self.load(record).to(output.device, output.dtype)
                sources.append(output)
                gradient = (alter(gradient) if alter else gradient).reshape(output.shape)
                cotangents.append(laid(gradient, record.layout))
            if not sources or not leaves:
                continue
            made: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
                sources, list(leaves.values()), cotangents, retain_graph=True, allow_unused=True
            )
            gradients = [None if one is None else in_a_row(one.cpu()) for one in made]
            found.update(self._by_input(dict(zip(leaves, gradients, strict=True)), occurrence))
        return found

    def _by_input(
        self, gradients: dict[int, torch.Tensor | None], occurrence: int
    ) -> Iterator[tuple[tuple[int, int], tuple[torch.Tensor, ...]]]:
        for index, gradient in gradients.items():
            if gradient is None:
                continue
            content = self._rebuilt.inputs[index].content.id
            same = [
                other
                for number, other in gradients.items()
                if other is not None and self._rebuilt.inputs[number].content.id == content
            ]
            alternatives = (gradient, sum(same[1:], same[0])) if len(same) > 1 else (gradient,)
            yield (index, occurrence), alternatives


def outputs_of(results: Results, record: TensorRecord) -> tuple[torch.Tensor, ...]:
    """Return a re-run's values for a recorded output or gradient, in one or two readings.

    Raises
    ------
    CannotReplay
        If it made none, or one of another shape.
    """
    found: tuple[Any, ...]
    if record.role in _GRADIENTS:
        found = results.gradients.get((record.index, record.occurrence), ())
    else:
        output = results.outputs.get(record.index)
        found = () if output is None else (output,)
    fitting = tuple(tensor for tensor in found if tuple(tensor.shape) == record.shape)
    if not fitting:
        raise CannotReplay("the re-run gives no such result")
    return fitting
