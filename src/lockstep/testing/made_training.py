"""A training of two layers in NumPy that makes the calls a recording of it would hold; no torch is loaded.

What is computed can be altered at any named place, so that a test plants a fault or a sound
difference exactly where it wants one: `MadeTraining(alter={"relu": np.tanh})`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.records import Call, Content, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.core.sketch import sketch_of
from lockstep.kernels.numbers import statistics_of

Array = npt.NDArray[Any]
Alteration = Callable[[Array], Array]

Named = tuple[Phase, Role, int, str, str, int, Content]
"""A record: phase, role, index, name, argument, moment, content."""


@dataclass
class Draft:
    """A call that still takes records."""

    id: int
    kind: CallKind
    site: Site
    module_class: str
    parent: int
    sequence: int
    arguments: dict[str, Any]
    records: list[Named] = field(default_factory=list)


class Tape:
    """Collects the calls of one step of one rank, with contents known by their bytes, and kept if they are `whole`."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self.drafts: list[Draft] = []
        self._contents: dict[tuple[str, tuple[int, ...], str], Content] = {}
        self._sequence = 0
        self._next_call = 0
        self._counts: dict[tuple[Phase, str, str], int] = {}
        self.step = 0

    def begin(
        self,
        kind: CallKind,
        phase: Phase,
        module: str,
        op: str,
        *,
        parent: int = -1,
        arguments: Mapping[str, Any] | None = None,
    ) -> Draft:
        """Open a call."""
        key = (phase, module, op)
        number = self._counts[key] = self._counts.get(key, -1) + 1
        draft = Draft(
            self._next_call,
            kind,
            Site(module, op, number, phase),
            op if kind in (CallKind.MODULE, CallKind.INIT) else "",
            parent,
            self.tick(),
            dict(arguments or {}),
        )
        self._next_call += 1
        self.drafts.append(draft)
        return draft

    def record(
        self,
        draft: Draft,
        phase: Phase,
        role: Role,
        name: str,
        value: Array,
        *,
        argument: str = "",
    ) -> None:
        """Add a record; gradients of inputs have the index of their input."""
        same = [item for item in draft.records if item[1] is role]
        index = len(same)
        if role in (Role.GRAD_INPUT, Role.PARAM_GRAD):
            index = next(
                (one[2] for one in draft.records if one[3] == name and one[1] is Role.INPUT), 0
            )
        moment = self.tick()
        draft.records.append((phase, role, index, name, argument, moment, self.content(value)))

    def tick(self) -> int:
        """Next moment."""
        self._sequence += 1
        return self._sequence

    def content(self, value: Array) -> Content:
        """Content of an array; equal bytes are one content."""
        value = np.ascontiguousarray(value)
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        key = (str(value.dtype), value.shape, digest)
        if key not in self._contents:
            self._contents[key] = Content(
                id=len(self._contents),
                dtype=str(value.dtype),
                shape=value.shape,
                device="cpu",
                digest=digest,
                statistics=statistics_of(value),
                sketch_loader=partial(np.asarray, sketch_of(value))
                if value.dtype.kind == "f"
                else None,
                loader=partial(np.asarray, value) if self._whole else None,
            )
        return self._contents[key]

    def finish(self) -> list[Call]:
        """The calls of the step; the next step starts empty, with the same contents."""
        calls = [self._call(draft) for draft in self.drafts]
        self.drafts, self._counts = [], {}
        self.step += 1
        return calls

    def _call(self, draft: Draft) -> Call:
        records = tuple(
            TensorRecord(
                rank="rank0",
                step=self.step,
                site=Site(draft.site.module, draft.site.op, draft.site.call, phase),
                role=role,
                index=index,
                name=name,
                sequence=sequence,
                occurrence=0,
                content=content,
                argument=argument,
            )
            for phase, role, index, name, argument, sequence, content in draft.records
        )
        return Call(
            id=draft.id,
            rank="rank0",
            step=self.step,
            kind=draft.kind,
            site=draft.site,
            module_class=draft.module_class,
            parent=draft.parent,
            sequence=draft.sequence,
            stack=(),
            arguments=draft.arguments,
            recomputed=False,
            records=records,
        )


class MadeTraining:
    """Trains `y = relu(x W1' + b1) W2' + b2` on a squared error with SGD, in float32.

    Parameters
    ----------
    alter
        What to do to a value right after it is computed, by place: "data", "init", "fc1", "relu",
        "fc2", "loss", "grad fc2" (gradient that leaves `fc2`), "grad relu", "grad fc1.weight",
        "enter relu" (gradient that enters it), "accumulated" (`fc1.weight.grad`), "clipped" (as
        the optimizer gets it), "update".
    settings
        Other values for plain arguments: "lr".
    by_hand
        Write the relu as two operators, `torch.gt` and `torch.mul`.
    extra
        Call one operator more than others do, whose result nobody uses.
    spelling
        Name of the relu.
    steps
        How many.
    rows
        Size of the batch.
    whole
        Keep whole tensors, as `--save tensors` does.
    seed
        Other parameters and batches: another training of the same model.

    Attributes
    ----------
    steps
        The calls of each step.
    parameters
        As they are after the last one.
    settings, whole
        As given.
    """

    def __init__(
        self,
        *,
        alter: Mapping[str, Alteration] | None = None,
        settings: Mapping[str, float] | None = None,
        by_hand: bool = False,
        extra: bool = False,
        spelling: str = "torch.nn.functional.relu",
        steps: int = 1,
        rows: int = 64,
        whole: bool = False,
        seed: int = 0,
    ) -> None:
        self._alter = dict(alter or {})
        self.settings = {"lr": 0.05, **(settings or {})}
        self._by_hand, self._extra, self._spelling, self._rows = by_hand, extra, spelling, rows
        self.whole = whole
        self._tape = Tape(whole=whole)
        self._gradients: dict[str, Array] = {}
        self._random = np.random.default_rng(seed)
        self.parameters = {
            "fc1.weight": self._draw(32, 16),
            "fc1.bias": self._draw(32),
            "fc2.weight": self._draw(8, 32),
            "fc2.bias": self._draw(8),
        }
        self.parameters["fc1.weight"] = self._at("init", self.parameters["fc1.weight"])
        self.steps = [self._step(first=number == 0) for number in range(steps)]

    def _draw(self, *shape: int) -> Array:
        return self._random.standard_normal(shape).astype(np.float32)

    def _at(self, place: str, value: Array) -> Array:
        return self._alter[place](value) if place in self._alter else value

    def _step(self, *, first: bool) -> list[Call]:
        tape = self._tape
        if first:
            for layer in ("fc1", "fc2"):
                call = tape.begin(CallKind.INIT, Phase.INIT, layer, "torch.nn.Linear")
                for kind in ("weight", "bias"):
                    name = f"{layer}.{kind}"
                    tape.record(call, Phase.INIT, Role.PARAM, name, self.parameters[name])
        batch, target = self._at("data", self._draw(self._rows, 16)), self._draw(self._rows, 8)
        for name, value in (("args.0 of net", batch), ("args.1 of mse_loss", target)):
            call = tape.begin(CallKind.DATA, Phase.DATA, "", "batch")
            tape.record(call, Phase.DATA, Role.OUTPUT, name, value)
        net = tape.begin(CallKind.MODULE, Phase.FORWARD, "net", "Net")
        tape.record(net, Phase.FORWARD, Role.INPUT, "args.0", batch)
        first_layer, hidden = self._linear("fc1", batch, net.id)
        active_calls, active = self._relu(hidden, net.id)
        second_layer, output = self._linear("fc2", active, net.id)
        tape.record(net, Phase.FORWARD, Role.OUTPUT, "result", output)
        loss = self._loss(output, target)
        gradient = 2 * (output - target) / output.size
        tape.record(loss, Phase.BACKWARD, Role.GRAD_INPUT, "args.0", gradient)
        tape.record(net, Phase.BACKWARD, Role.GRAD_OUTPUT, "result", gradient)
        gradient = self._linear_backward("fc2", second_layer, active, gradient)
        gradient = self._relu_backward(active_calls, hidden, gradient)
        self._linear_backward("fc1", first_layer, batch, gradient)
        self._update()
        return tape.finish()

    def _linear(self, layer: str, value: Array, parent: int) -> tuple[Draft, Array]:
        tape, weight, bias = self._tape, f"{layer}.weight", f"{layer}.bias"
        call = tape.begin(
            CallKind.OPERATOR, Phase.FORWARD, layer, "torch.nn.functional.linear", parent=parent
        )
        tape.record(call, Phase.FORWARD, Role.INPUT, "args.0", value)
        for argument, name in (("args.1", weight), ("args.2", bias)):
            operand = self.parameters[name]
            tape.record(call, Phase.FORWARD, Role.INPUT, name, operand, argument=argument)
        result = value @ self.parameters[weight].T + self.parameters[bias]
        result = self._at(layer, result)
        tape.record(call, Phase.FORWARD, Role.OUTPUT, "result", result)
        return call, result

    def _operator(self, op: str, inputs: list[Array], output: Array, parent: int) -> Draft:
        tape, module = self._tape, "" if parent == -1 else "net"
        call = tape.begin(CallKind.OPERATOR, Phase.FORWARD, module, op, parent=parent)
        for number, value in enumerate(inputs):
            tape.record(call, Phase.FORWARD, Role.INPUT, f"args.{number}", value)
        tape.record(call, Phase.FORWARD, Role.OUTPUT, "result", output)
        return call

    def _relu(self, hidden: Array, parent: int) -> tuple[list[Draft], Array]:
        result = self._at("relu", np.maximum(hidden, 0))
        if self._extra:
            self._operator("torch.abs", [hidden], np.abs(hidden), parent)
        if not self._by_hand:
            return [self._operator(self._spelling, [hidden], result, parent)], result
        mask = hidden > 0
        gate = self._operator("torch.gt", [hidden], mask, parent)
        return [gate, self._operator("torch.mul", [hidden, mask], result, parent)], result

    def _relu_backward(self, calls: list[Draft], hidden: Array, gradient: Array) -> Array:
        gradient = self._at("enter relu", gradient)
        result = self._at("grad relu", gradient * (hidden > 0))
        self._tape.record(calls[-1], Phase.BACKWARD, Role.GRAD_OUTPUT, "result", gradient)
        self._tape.record(calls[-1], Phase.BACKWARD, Role.GRAD_INPUT, "args.0", result)
        return result

    def _loss(self, output: Array, target: Array) -> Draft:
        value = self._at("loss", np.asarray(np.mean((output - target) ** 2, dtype=np.float32)))
        call = self._operator("torch.nn.functional.mse_loss", [output, target], value, -1)
        total = self._tape.begin(CallKind.LOSS, Phase.FORWARD, "", "loss")
        self._tape.record(total, Phase.FORWARD, Role.LOSS, "loss", value)
        self._tape.record(call, Phase.BACKWARD, Role.GRAD_OUTPUT, "result", np.ones_like(value))
        return call

    def _linear_backward(self, layer: str, call: Draft, value: Array, gradient: Array) -> Array:
        tape, backward = self._tape, Phase.BACKWARD
        tape.record(call, backward, Role.GRAD_OUTPUT, "result", gradient)
        to_input = self._at(f"grad {layer}", gradient @ self.parameters[f"{layer}.weight"])
        tape.record(call, backward, Role.GRAD_INPUT, "args.0", to_input)
        sums = {"weight": gradient.T @ value, "bias": gradient.sum(0)}
        for kind, total in sums.items():
            name = f"{layer}.{kind}"
            total = self._at(f"grad {name}", total)
            tape.record(call, backward, Role.PARAM_GRAD, name, total)
            total = self._at("accumulated", total) if name == "fc1.weight" else total
            grad = tape.begin(CallKind.GRADIENT, backward, layer, "accumulate_grad")
            tape.record(grad, backward, Role.PARAM_GRAD, name, total)
            self._gradients[name] = total
        return to_input

    def _update(self) -> None:
        tape, phase, lr = self._tape, Phase.OPTIMIZER, self.settings["lr"]
        for name, value in self.parameters.items():
            call = tape.begin(
                CallKind.OPTIMIZER,
                phase,
                name.split(".")[0],
                "torch.optim.SGD",
                arguments={"lr": lr, "foreach": None},
            )
            gradient = self._at("clipped", self._gradients[name])
            tape.record(call, phase, Role.PARAM, name, value)
            tape.record(call, phase, Role.PARAM_GRAD, name, gradient)
            after = value - self._at("update", np.float32(lr) * gradient)
            tape.record(call, phase, Role.PARAM_AFTER, name, after)
            self.parameters[name] = after
