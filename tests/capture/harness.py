"""Runs a training bare and recorded, and asserts that recording changed no bit of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import lockstep
from lockstep.capture.recorder import Recorder
from lockstep.capture.updates.step_hooks import _nothing
from lockstep.core.manifest import Options
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.directory import RunDirectory
from lockstep.store.reader import Recording

Bits = dict[str, tuple[str, tuple[int, ...], bytes]]


@dataclass
class Training:
    """A training that has not begun: its modules, and what one step of it does.

    ``step`` gets the step number and returns what should be compared: the loss, or tensors.
    """

    model: nn.Module | None
    step: Callable[[int], Any]
    others: dict[str, Any] = field(default_factory=dict)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)


def supervised(
    model: nn.Module,
    batch: Callable[[], tuple[Tensor, ...]],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[[Any], Tensor] = lambda output: output.square().mean(),
) -> Training:
    """The plain loop: forward, loss, backward, update."""
    update = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)

    def step(_: int) -> Tensor:
        update.zero_grad()
        value = loss(model(*batch()))
        value.backward()
        update.step()
        return value.detach()

    return Training(model, step, optimizers=[update])


def bits_of(values: Any, name: str = "") -> Bits:
    """Every tensor inside nested values, as its dtype, shape and bytes."""
    if isinstance(values, Tensor):
        return {name: _bits(values)}
    if isinstance(values, dict):
        items: Iterator[tuple[Any, Any]] = iter(values.items())
    elif isinstance(values, (list, tuple)):
        items = iter(enumerate(values))
    else:
        return {name: (repr(values), (), b"")}
    found: Bits = {}
    for key, value in items:
        found |= bits_of(value, f"{name}.{key}")
    return found


def _bits(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    plain = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    flat = plain.resolve_conj().resolve_neg().contiguous().view(-1)
    data = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), data


def trace_of(training: Training, steps: int) -> Bits:
    """Run ``steps`` steps; returns the bits of all that they leave behind."""
    results = [training.step(number) for number in range(steps)]
    left: dict[str, Any] = {"result": results, "rng": torch.get_rng_state()}
    if training.model is not None:
        left["model"] = _module_state(training.model)
    for name, other in training.others.items():
        left[name] = _module_state(other) if isinstance(other, nn.Module) else other
    for number, optimizer in enumerate(training.optimizers):
        left[f"optimizer{number}"] = optimizer.state_dict()
    return bits_of(left)


def _module_state(module: nn.Module) -> dict[str, Any]:
    return {
        "state": dict(module.state_dict()),
        "gradients": {name: p.grad for name, p in module.named_parameters()},
    }


def check(
    build: Callable[[], Training],
    directory: Path,
    *,
    steps: int = 2,
    level: str = "api",
    save: str = "tensors",
    record_steps: int | str | None = None,
    seed: int = 7,
    **options: Any,
) -> Recording:
    """Run the training bare and recorded; returns the recording, with nothing bitwise changed."""
    torch.manual_seed(seed)
    bare = trace_of(build(), steps)
    torch.manual_seed(seed)
    training = build()
    before, modules = state_of_torch(), [training.model, *training.others.values()]
    hooked = [hooked_parameters(item) for item in modules if isinstance(item, nn.Module)]
    selected = steps if record_steps is None else record_steps
    chosen = selected if isinstance(selected, str) else f"0:{selected}"
    with lockstep.record(
        directory,
        model=training.model,
        steps=chosen,
        level=level,
        save=save,
        **options,
    ):
        recorded = trace_of(training, steps)
    assert state_of_torch() == before
    assert {key for key in bare if bare[key] != recorded.get(key)} == set()
    assert bare.keys() == recorded.keys()
    recording = lockstep.open(directory)
    assert recording.missing == ()
    assert [hooked_parameters(item) for item in modules if isinstance(item, nn.Module)] == hooked
    return recording


def recorded(directory: Path, train: Callable[[], object], **options: Any) -> Recording:
    """Record as `lockstep record -- python train.py` does, which knows no model."""
    torch.manual_seed(3)
    asked = Options(**{"save": "tensors", **options})
    run = RunDirectory.create(directory, ["train.py"], asked, force=False)
    run.started()
    recorder = Recorder(directory, asked, wait_for_optimizer=True)
    recorder.arm()
    try:
        kept = train()
    finally:
        recorder.finish(interrupted=True)
    run.finish(exit_code=0)
    del kept
    return lockstep.open(directory)


def _called(hooks: Mapping[int, Any]) -> int:
    """How many hooks do something: a place that another thread may go through is given back later."""
    return sum(one is not _nothing for one in hooks.values())


def state_of_torch() -> tuple[Any, ...]:
    """What the recorder patches, for comparison before and after."""
    stack = [
        torch._C._get_function_stack_at(position)
        for position in range(torch._C._len_torch_function_stack())
    ]
    dispatch = [
        torch._C._get_dispatch_stack_at(position)
        for position in range(torch._C._len_torch_dispatch_stack())
    ]
    return (
        vars(nn.Module)["__call__"],
        vars(torch.autograd.Function)["apply"],
        torch.autograd._engine_run_backward,
        torch.compile,
        torch.optim.Optimizer.__init__,
        torch.amp.GradScaler.step,
        torch.utils.checkpoint._CheckpointFrame.__init__,
        vars(FakeTensorMode)["__enter__"],
        vars(FakeTensorMode)["__exit__"],
        _called(_global_optimizer_pre_hooks),
        _called(_global_optimizer_post_hooks),
        stack,
        dispatch,
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


def hooked_parameters(module: nn.Module) -> dict[str, int]:
    """How many hooks are on parameters, or on the node that adds to their gradient, by name; only where there are."""
    found = {
        name: len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
        + len(parameter._backward_hooks or ())
        for name, parameter in module.named_parameters()
    }
    return {name: count for name, count in found.items() if count}


# --- looking into a recording ---------------------------------------------------------------------


def calls(
    recording: Recording,
    op: str = "",
    module: str | None = None,
    *,
    step: int = 0,
    kind: CallKind | None = None,
    recomputed: bool | None = False,
) -> list[Call]:
    """Calls of modules and operators in one step whose operator ends in ``op``, in order of time."""
    return [
        call
        for call in recording.ranks["rank0"].calls(step)
        if (call.site.op == op or call.site.op.endswith(f".{op}") or not op)
        and (module is None or call.site.module == module)
        and (
            call.kind in (CallKind.MODULE, CallKind.OPERATOR) if kind is None else call.kind is kind
        )
        and (recomputed is None or call.recomputed == recomputed)
    ]


def one_call(recording: Recording, op: str = "", module: str | None = None, **how: Any) -> Call:
    """The only such call."""
    found = calls(recording, op, module, **how)
    assert len(found) == 1, [str(call.site) for call in found]
    return found[0]


def values(call: Call, role: Role, index: int = 0, occurrence: int = 0) -> Tensor:
    """The whole tensor recorded in a role."""
    return as_tensor(one_record(call, role, index, occurrence))


def one_record(call: Call, role: Role, index: int = 0, occurrence: int = 0) -> TensorRecord:
    """The only such record."""
    found = [
        record
        for record in call.records
        if record.role is role and record.index == index and record.occurrence == occurrence
    ]
    roles = [(record.role.value, record.index, record.occurrence) for record in call.records]
    assert len(found) == 1, f"{call.site}: {roles}"
    return found[0]


def as_tensor(record: TensorRecord) -> Tensor:
    """A recorded tensor, with the dtype it had."""
    array = np.array(record.load())
    return torch.from_numpy(array).to(getattr(torch, record.dtype)).reshape(record.shape)


def named(recording: Recording, name: str, role: Role, *, step: int = 0) -> list[TensorRecord]:
    """Records of one step by name and role, in order of time."""
    found = [
        record
        for call in recording.ranks["rank0"].calls(step)
        for record in call.records
        if record.name == name and record.role is role
    ]
    return sorted(found, key=lambda record: record.sequence)


def same(recorded: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are bitwise equal, in dtype and shape too."""
    return _bits(recorded) == _bits(expected)


def not_seen(recording: Recording) -> dict[str, str]:
    """What the recording says it did not see, and why."""
    return {item.what: item.reason for item in recording.ranks["rank0"].manifest.not_seen}


def fingerprint(recording: Recording) -> str:
    """A digest over all sites and contents, equal for two recordings of the same run."""
    rows = [
        (str(record.site), record.role.value, record.index, record.name, record.digest or "")
        for record in recording.records()
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


__all__ = [
    "Call",
    "CallKind",
    "Phase",
    "Recording",
    "Role",
    "Training",
    "as_tensor",
    "bits_of",
    "calls",
    "check",
    "fingerprint",
    "hooked_parameters",
    "named",
    "not_seen",
    "one_call",
    "one_record",
    "recorded",
    "same",
    "state_of_torch",
    "supervised",
    "trace_of",
    "values",
]
