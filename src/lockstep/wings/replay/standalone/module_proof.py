"""The contents of a module's stand-alone test: inputs, calls as lines, expected results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.core.dtypes import is_floating
from lockstep.core.records import Call, Conditions, Layout, TensorRecord
from lockstep.core.text import printable
from lockstep.judge.tolerances import SENTINEL_MAGNITUDE
from lockstep.replay.answers import ModuleCall
from lockstep.replay.calls.machine import HERE
from lockstep.replay.calls.one_call import RESULTS
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.recorded_tensors import load, random_state_of, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.chains.chain import Chain, is_passed
from lockstep.replay.error_bounds.distance import median_size
from lockstep.replay.error_bounds.margin import Local
from lockstep.wings.replay.standalone.proof import Limit, Proof
from lockstep.wings.replay.standalone.python_source import as_name, call_source

_ALL_THERE_IS = 1 << 62
"""Bytes: it was run again before it is written down."""


def module_proof(module: ModuleCall, *, like_its_own: bool) -> Proof:
    """A test of a module's forward: its calls in their order, on what entered it.

    module: With whole tensors.
    like_its_own: As `lockstep.replay.chains.chain.chained` takes it.

    Raises CannotReplay if none of its results can be held, or a call cannot be written down.
    """
    chain = Chain(module, HERE, _ALL_THERE_IS)
    writer = _Writer(chain)
    for call in module.inside:
        if call.id in chain.refused:
            writer.leave_out(call)
        else:
            writer.write(call)
    noisy = chain.noisy(like_its_own=like_its_own)
    for record in chain.targets():
        name, why = f"{record.role.value} {record.name}", chain.refusal(record)
        if why:
            writer.proof.refused[name] = why
            continue
        truth = chain.truth[record.content.id]
        found = chain.held(record, widened(load(record)), noisy)
        writer.proof.hold(name, record, truth.clone(), _limits(truth, found))
        writer.proof.lines.append(f"check({name!r}, {writer.made[record.content.id]})")
    if not writer.proof.expected:
        why = next(iter(writer.proof.refused.values()), "it gives nothing")
        raise CannotReplay(f"nothing that it gives can be tested: {why}")
    return writer.proof


class _Writer:
    """Writes calls down as lines of Python, one after the other."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.proof = Proof(chain.module.call)
        self.made: dict[int, str] = {}
        self._entered: dict[tuple[int, Layout | None], str] = {}

    def leave_out(self, call: Call) -> None:
        """The lines go on from what was recorded of a call."""
        for record in call.with_role(*RESULTS):
            self.made.pop(record.content.id, None)
        self.proof.lines.append(f"# as recorded, not run: {printable(call.site.op)}")

    def write(self, call: Call) -> None:
        """A call, on what those before it gave."""
        step = self._chain.steps[call.id]
        passed = {index: self._given(record) for index, record in step.rebuilt.inputs.items()}
        lines = self.proof.lines
        if step.writes:
            for index, name in passed.items():
                lines.append(f"written_{index} = {name}.clone()")
            passed = {index: f"written_{index}" for index in passed}
        if (state := random_state_of(call)) is not None:
            self.proof.random = True
            name = f"random_state_{call.id}"
            self.proof.add_input(name, state, None)
            lines.append(f'torch.set_rng_state(values["{name}"].cpu())')
        self.proof.calls(step.rebuilt.op)
        source = f"results = as_tuple({call_source(step.rebuilt, passed)})"
        autocast = (call.conditions or Conditions()).autocast
        if step.cast is not None and autocast:
            lines.append(f"with torch.autocast(DEVICE.type, {torch_dtype(autocast[0][1])}):")
            source = f"    {source}"
        lines.append(source)
        self._keep(call, passed)

    def _keep(self, call: Call, passed: dict[int, str]) -> None:
        """Give names to what a call gave: results first, then the arguments that it wrote to."""
        returned = sum(record.name.startswith("result") for record in call.with_role(*RESULTS))
        for record in call.with_role(*RESULTS):
            if not is_floating(record.dtype):
                self.made.pop(record.content.id, None)
                continue
            own = f"results[{record.index}]"
            if not record.name.startswith("result"):
                own = passed.get(record.index - returned, "")
            if not own:
                raise CannotReplay(f"which argument {call.site.op} wrote to is not recorded")
            name = f"made_{len(self.proof.lines)}_{record.index}"
            self.proof.lines.append(f"{name} = {own}")
            self.made[record.content.id] = name

    def _given(self, record: TensorRecord) -> str:
        """The name of an input: what a call before gave, or what enters."""
        number, key = record.content.id, (record.content.id, record.layout)
        if is_passed(record) and number in self.made:
            return self.made[number]
        if key not in self._entered:
            name = f"entered_{as_name(record.name, record.index)}_{number}_{len(self._entered)}"
            self.proof.add_input(name, load(record), record.layout)
            self.proof.lines.append(f'{name} = values["{name}"]')
            self._entered[key] = name
        return self._entered[key]


def _limits(truth: torch.Tensor, found: Sequence[Local]) -> list[Limit]:
    limits = []
    for number, local in enumerate(found):
        median = None if number == len(found) - 1 else median_size(truth)
        up_to = None if median is None else median * SENTINEL_MAGNITUDE
        limits.append(Limit(up_to, local.allowed, None))
    return limits
