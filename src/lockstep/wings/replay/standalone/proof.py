"""The contents of a call's stand-alone test: inputs, the lines that run the operator, expected results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.operators import Family, family_of, writes_in_place
from lockstep.core.records import Call, Conditions, Layout, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.judge.tolerances import SENTINEL_MAGNITUDE, SINGLE
from lockstep.replay.calls.again import rebuilt_like
from lockstep.replay.calls.alone import Alone
from lockstep.replay.calls.decisions import probability_of
from lockstep.replay.calls.held_results import BACKWARD, FORWARD, carrier, results_of
from lockstep.replay.calls.imported import import_named
from lockstep.replay.calls.optimizer_update import UpdateRerun
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.recorded_tensors import load
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision, Rerun, outputs_of
from lockstep.replay.calls.side import Reading, Side
from lockstep.replay.error_bounds.distance import median_size
from lockstep.replay.error_bounds.margin import Local
from lockstep.replay.error_bounds.rounded_elements import Envelope
from lockstep.wings.replay.standalone.checks import as_real
from lockstep.wings.replay.standalone.python_source import (
    as_name,
    call_source,
    settings_source,
)


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest error that elements of a result may have.

    up_to: Largest size of these elements; None for all that are larger than those before.
    allowed: Distance over the norm of the expected ones.
    allowed_misrounded: Share that need not be the nearest number of the 16-bit dtype; None for no such limit.
    rounded_to: That dtype: a gradient under autocast goes through it, and is float32; "" where there is no such limit.
    """

    up_to: float | None
    allowed: float
    allowed_misrounded: float | None
    rounded_to: str = ""


@dataclass(slots=True)
class Proof:
    """One operator or update, ready to be written down.

    call: As recorded.
    inputs, layouts: Tensors by the names that the lines have for them.
    lines: Python that runs it on `values`, a mapping of these, and calls `check` for each result.
    expected, limits: What has to come out, by the name that `check` is called with.
    twice: The same of kernels that round before they add a bias, too; nothing for all else.
    recorded: The same as they were recorded.
    names: What `check` is called with for a result, by its role, index and occurrence.
    refused: Results that the test does not hold, with the reason.
    random: Whether it draws random numbers, from the state among the inputs.
    modules: Modules that hold the custom functions which it calls.
    """

    call: Call
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    expected: dict[str, torch.Tensor] = field(default_factory=dict)
    limits: dict[str, list[Limit]] = field(default_factory=dict)
    twice: dict[str, torch.Tensor] = field(default_factory=dict)
    recorded: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[tuple[Role, int, int], str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    random: bool = False
    modules: set[str] = field(default_factory=set)

    @property
    def is_module(self) -> bool:
        """Whether it is a module's calls, one after the other, rather than one operator or update."""
        return self.call.kind is CallKind.MODULE

    def hold(
        self, name: str, record: TensorRecord, expected: torch.Tensor, limits: list[Limit]
    ) -> None:
        """Take what has to come out."""
        self.expected[name], self.limits[name] = as_real(expected).contiguous(), limits
        self.names[record.role, record.index, record.occurrence] = name
        self.recorded[name] = as_real(load(record))

    def calls(self, op: str) -> None:
        """Take note of an operator that the lines call."""
        if (imported := import_named(op)) is not None:
            self.modules.add(imported.module)

    def add_input(self, name: str, tensor: torch.Tensor, layout: Layout | None) -> None:
        """Take a tensor that goes in."""
        self.inputs[name] = tensor
        if layout is not None:
            self.layouts[name] = layout


def proof_of(call: Call, *, like: Call | None = None) -> Proof:
    """A test of a recorded call on its own inputs.

    call: An operator or an update, with whole tensors.
    like: The other run's call, whose plain arguments are used.

    Raises CannotReplay if it cannot be run again, or nothing of what it gives can be held.
    """
    if call.kind is CallKind.OPTIMIZER:
        proof = _update_proof(call)
    else:
        proof = _OperatorProof(call, like).proof
    for record in results_of(call):
        if (record.role, record.index, record.occurrence) not in proof.names:
            arrives = (
                "" if record.role in FORWARD else ": no gradient that arrives at it was recorded"
            )
            proof.refused.setdefault(
                f"{record.role.value} {record.name}", f"it cannot be made again{arrives}"
            )
    if not proof.expected:
        why = next(iter(proof.refused.values()), "it gives nothing")
        raise CannotReplay(f"nothing that it gives can be tested: {why}")
    return proof


# --- operators ---------------------------------------------------------------------------------------


class _OperatorProof:
    def __init__(self, call: Call, like: Call | None) -> None:
        self._call, self._rebuilt = call, rebuilt_like(call, like)
        self._rerun = Rerun(call, self._rebuilt)
        arrived = call.with_role(Role.GRAD_OUTPUT)
        self._backward = bool(arrived) and bool(call.with_role(*BACKWARD))
        self._sides = {
            backward: Side(self._rerun, backward=backward) for backward in (False, self._backward)
        }
        self._names: dict[int, str] = {}
        for index, record in self._rebuilt.inputs.items():
            name = as_name(record.name, index)
            taken = name in self._names.values()
            self._names[index] = f"{name}_{index}" if taken else name
        self.proof = Proof(call, random=self._draws())
        self._write()

    def _draws(self) -> bool:
        family = family_of(self._call.site.op)
        drops = family is Family.DROPOUT and probability_of(self._call) > 0
        draws = self._call.random_state is not None or family is Family.RANDOM or drops
        if draws and not self._rerun.can_draw_again:
            raise CannotReplay("it draws random numbers, and from which state was not saved")
        return draws

    def _write(self) -> None:
        proof = self.proof
        wanted = {record.index for record in self._call.with_role(*BACKWARD)}
        leaves = []
        for index, record in self._rebuilt.inputs.items():
            tensor, name = self._rerun.load(record), self._names[index]
            proof.add_input(name, tensor, record.layout)
            rounds = tensor.is_floating_point() or tensor.is_complex()
            asked = self._backward and index in wanted and rounds
            proof.lines.append(f'{name} = values["{name}"]{".requires_grad_()" if asked else ""}')
            leaves += [(index, name)] if asked else []
        state = self._rerun.random_state()
        if proof.random and state is not None:
            proof.add_input("random_state", state, None)
            proof.lines.append('torch.set_rng_state(values["random_state"].cpu())')
        passed = {
            index: self._passed(name) if (index, name) in leaves else name
            for index, name in self._names.items()
        }
        proof.calls(self._rebuilt.op)
        proof.lines += self._called(call_source(self._rebuilt, passed))
        for record in self._call.with_role(*FORWARD):
            name = f"{record.role.value} {record.name}"
            made = self._made(record, passed)
            if made:
                self._expect(record, name, (made,))
            else:
                proof.refused[name] = "which of the arguments it was written to is not recorded"
        if leaves:
            self._write_backward(leaves)

    def _called(self, source: str) -> list[str]:
        conditions = self._call.conditions or Conditions()
        wanted = self._rerun.cast is not None and conditions.autocast
        if not wanted:
            return [f"results = as_tuple({source})"]
        dtype = torch_dtype(conditions.autocast[0][1])
        return [
            f"with torch.autocast(DEVICE.type, {dtype}):",
            f"    results = as_tuple({source})",
        ]

    @property
    def _writes(self) -> bool:
        """Whether the operator writes to an argument."""
        inplace = any(
            value is True and "inplace" in key for key, value in self._call.arguments.items()
        )
        return inplace or writes_in_place(self._call.site.op)

    def _passed(self, name: str) -> str:
        """What is passed for a leaf: a view, or a copy where the operator writes to an argument."""
        if not self._writes:
            return f"{name}.view_as({name})"
        self.proof.lines.append(f"{name}_written = {name}.clone()")
        return f"{name}_written"

    def _made(self, record: TensorRecord, passed: Mapping[int, str]) -> str:
        """Where a result stands behind the call: among what it returned, or in an argument that it wrote to."""
        if record.name.startswith("result"):
            return f"results[{record.index}]"
        written = [
            passed[index]
            for index, entered in self._rebuilt.inputs.items()
            if entered.name == record.name and "(" not in passed[index]
        ]
        return written[0] if len(written) == 1 else ""

    def _write_backward(self, leaves: list[tuple[int, str]]) -> None:
        arrived = self._call.with_role(Role.GRAD_OUTPUT)
        for occurrence in sorted({record.occurrence for record in arrived}):
            now = [record for record in arrived if record.occurrence == occurrence]
            coming = []
            for record in now:
                name = f"grad_output_{record.index}_{occurrence}"
                self.proof.add_input(name, self._rerun.load(record), record.layout)
                coming.append(f'values["{name}"]')
            outputs = ", ".join(f"results[{record.index}]" for record in now)
            inputs = ", ".join(name for _, name in leaves)
            self.proof.lines += [
                "gradients = torch.autograd.grad(",
                f"    [{outputs}], [{inputs}], [{', '.join(coming)}], retain_graph=True, allow_unused=True",
                ")",
            ]
            for position, (index, name) in enumerate(leaves):
                for record in self._call.with_role(*BACKWARD):
                    if (record.index, record.occurrence) == (index, occurrence):
                        again = f", backward {occurrence + 1}" if occurrence else ""
                        alone = f"gradients[{position}]"
                        made = (alone, " + ".join(self._of_one_tensor(index, leaves)))
                        self._expect(record, f"gradient of {name}{again}", made)

    def _of_one_tensor(self, index: int, leaves: list[tuple[int, str]]) -> list[str]:
        """The gradients that one tensor gets which was passed several times."""
        inputs = self._rebuilt.inputs
        return [
            f"gradients[{position}]"
            for position, (other, _) in enumerate(leaves)
            if inputs[other].content.id == inputs[index].content.id
        ]

    def _expect(self, record: TensorRecord, name: str, made: Sequence[str]) -> None:
        """Hold one result, if that can be done; `made` says where it stands, for each way to read it."""
        try:
            if is_floating(record.dtype):
                reading = self._read(record)
                expected, limits = self._expected(record, reading)
                twice = self._rounded_twice(record, reading, expected)
                own_source = made[min(reading.number, len(made) - 1)]
            else:
                own = self._rerun.run(Precision.OWN, backward=False, cast=False)
                expected, limits, own_source = outputs_of(own, record)[0], [], made[0]
                twice = None
        except CannotReplay as error:
            self.proof.refused[name] = str(error)
            return
        self.proof.hold(name, record, expected, limits)
        if twice is not None:
            self.proof.twice[name] = twice.contiguous()
        self.proof.lines.append(f"check({name!r}, {own_source})")

    def _read(self, record: TensorRecord) -> Reading:
        """How a result is best read, with inputs cast as the lines cast them."""
        side = self._side_of(record)
        first, *others = side.readings(record)
        alike = [first, *(one for one in others if one.cast == first.cast)]
        return min(alike, key=lambda one: Alone(side, record, one).local().excess)

    def _side_of(self, record: TensorRecord) -> Side:
        """Without backward for what is returned: of large results a run with backward keeps gradients alone."""
        return self._sides[self._backward and record.role in BACKWARD]

    def _expected(self, record: TensorRecord, reading: Reading) -> tuple[torch.Tensor, list[Limit]]:
        """The double-precision result as it is best read, and what a sound kernel may be off."""
        held = Alone(self._side_of(record), record, reading)
        found = held.locals(at_once=False)
        rounded_to = carrier(held.side.call, record) if held.unit > SINGLE else ""
        return held.truth.clone(), list(_limits(held.truth, found, rounded_to))

    def _rounded_twice(
        self, record: TensorRecord, reading: Reading, truth: torch.Tensor
    ) -> torch.Tensor | None:
        """What kernels give that round a sum of products before they add a bias; None for all else."""
        side = self._side_of(record)
        products = side.products(record, reading) if side.unit(record) > SINGLE else None
        if products is None:
            return None
        return (
            Envelope.once(truth, torch_dtype(carrier(side.call, record)))
            .or_twice(products)
            .made[-1]
        )


def _limits(truth: torch.Tensor, found: list[Local], rounded_to: str) -> Iterator[Limit]:
    """What a sound kernel may be off in each population, and how many it misrounds of a 16-bit dtype."""
    for number, local in enumerate(found):
        last = number == len(found) - 1
        median = None if last else median_size(truth)
        up_to = None if median is None else median * SENTINEL_MAGNITUDE
        share = local.allowed_misrounded
        counts = bool(rounded_to) and share < 1.0 and len(found) == 1
        yield Limit(up_to, local.allowed, share if counts else None, rounded_to if counts else "")


# --- updates ------------------------------------------------------------------------------------------


def _update_proof(call: Call) -> Proof:
    """A test of one optimizer step of one parameter."""
    update, proof = UpdateRerun(call), Proof(call)
    for key, (tensor, layout) in update.entering().items():
        proof.add_input(as_name(key, 0), tensor, layout)
    keys = [key for key in update.entering() if key not in ("param", "grad")]
    settings = settings_source(update.settings())
    proof.lines += [
        'parameter = values["param"].requires_grad_()',
        'parameter.grad = values["grad"]',
        f"optimizer = {call.site.op}([parameter]{settings})",
        *(
            f"optimizer.param_groups[0][{key!r}] = {value!r}"
            for key, value in update.of_group().items()
        ),
        *(
            f'optimizer.state[parameter][{key!r}] = values["{as_name(key, 0)}"]{_on_host(key)}'
            for key in keys
        ),
        "optimizer.step()",
    ]
    for record in call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER):
        key = update.key_of(record)
        made = "parameter" if key == "param" else f"optimizer.state[parameter][{key!r}]"
        name = f"{record.role.value} {key}"
        try:
            truth, local = update.truth(record), update.local(record)
        except CannotReplay as error:
            proof.refused[name] = str(error)
            continue
        floor = 4.0 * unit_roundoff(record.dtype)
        proof.hold(name, record, truth, [Limit(None, max(local.allowed, floor), None)])
        proof.lines.append(f"check({name!r}, {made})")
    return proof


def _on_host(key: str) -> str:
    return ".cpu()" if key == "step" else ""


def facts(proof: Proof) -> dict[str, Any]:
    """Layouts and limits as JSON values: what `checks` reads."""
    return {
        "layouts": dict(_memory(proof)),
        "limits": {
            name: [
                {
                    "up_to": limit.up_to,
                    "allowed": limit.allowed,
                    "allowed_misrounded": limit.allowed_misrounded,
                    "rounded_to": limit.rounded_to,
                }
                for limit in limits
            ]
            for name, limits in proof.limits.items()
        },
    }


def _memory(proof: Proof) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each tensor lies in which memory; those that share some are placed from the first element on."""
    sharing: dict[tuple[int, torch.dtype], list[str]] = {}
    for number, (name, layout) in enumerate(proof.layouts.items()):
        key = layout.shares if layout.shares >= 0 else -2 - number
        sharing.setdefault((key, proof.inputs[name].dtype), []).append(name)
    for number, names in enumerate(sharing.values()):
        first = min(proof.layouts[name].offset for name in names)
        spans = {name: _span(proof.inputs[name], proof.layouts[name]) for name in names}
        elements = max(proof.layouts[name].offset - first + span for name, span in spans.items())
        most = 64 * sum(proof.inputs[name].numel() for name in names)
        for name in names:
            layout = proof.layouts[name]
            if min(layout.strides, default=0) >= 0 and 0 < elements <= most:
                yield (
                    name,
                    {
                        "memory": number,
                        "elements": elements,
                        "offset": layout.offset - first,
                        "strides": list(layout.strides),
                    },
                )


def _span(tensor: torch.Tensor, layout: Layout) -> int:
    steps = zip(tensor.shape, layout.strides, strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in steps) if tensor.numel() else 0
