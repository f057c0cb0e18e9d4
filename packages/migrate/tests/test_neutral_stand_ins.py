"""What the neutral form writes for functions of torch.cuda runs on each device that has exactly the listed names."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from migrating import plan_of_code

from lockstep_migrate.names import names_of
from lockstep_migrate.plan import Outcome, rows_of

DEVICES = ("mps", "xpu", "npu", "hpu")
# Arguments as scripts give them; a function that is not named here is called without any.
ARGUMENTS = {
    "set_device": ["0"],
    "synchronize": ["", "0", '"cuda"'],
    "manual_seed": ["0"],
    "manual_seed_all": ["0"],
    "get_rng_state": ["", "0"],
    "set_rng_state": ["torch.zeros(1)", "torch.zeros(1), 0"],
    "set_rng_state_all": ["[torch.zeros(1)]"],
    "stream": ["torch.cuda.current_stream()"],
    "StreamContext": ["torch.cuda.current_stream()"],
    "device": ["0"],
    "memory_allocated": ["", "0", "device=0"],
    "max_memory_allocated": ["", "0", "device=0"],
    "reset_peak_memory_stats": ["", "0", "device=0"],
    "get_device_name": ["", "0"],
    "get_device_properties": ["0"],
    "Event": ["", "True", "enable_timing=True", "enable_timing=True, blocking=False"],
    "is_bf16_supported": ["", "including_emulation=False"],
}


class Anything:
    """What a function of a stand-in gives: a context, a number, a list."""

    def __init__(self, *_: object, **__: object) -> None: ...
    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *_: object) -> None: ...
    def __getitem__(self, _: object) -> Anything:
        return self


def stand_in(device: str) -> types.ModuleType:
    """A module with the listed names of a device and no other; functions take what the device's own take."""
    module = types.ModuleType(f"torch.{device}")
    real = getattr(torch, device, torch.cuda)
    for name in names_of(device):
        leaf = name.removeprefix(f"torch.{device}.")
        if leaf != name and "." not in leaf:
            function = getattr(real, leaf, None) or getattr(torch.cuda, leaf, None)
            setattr(module, leaf, _checked(function))
    return module


def _checked(function: object) -> Callable[..., Anything]:
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return Anything

    def call(*given: object, **named: object) -> Anything:
        signature.bind(*given, **named)
        return Anything()

    return call


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A torch that was built for a device, as far as neutral scripts ask."""
    name: str = request.param
    module = stand_in(name)
    monkeypatch.setattr(torch, name, module, raising=False)
    for leaf in ("set_device_index", "device_index", "synchronize", "current_device_index"):
        monkeypatch.setattr(torch.accelerator, leaf, Anything)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda: types.SimpleNamespace(type=name)
    )
    modules = {name: module, "cpu": torch.cpu}
    monkeypatch.setattr(torch, "get_device_module", lambda one: modules[str(one).split(":")[0]])
    return name


@functools.cache
def uses() -> tuple[str, tuple[tuple[str, str], ...]]:
    """The head of a migrated script with every function of torch.cuda, and each rewritten use, before and after."""
    lines = list(_lines())
    code = "\n".join(["import torch", *lines, ""])
    plan = plan_of_code(code)
    listed = {row.line for row in rows_of(plan) if row.outcome is Outcome.LISTED}
    after = plan.migrated().decode().splitlines()
    head = "\n".join(after[: -len(lines)])
    pairs = list(zip(lines, after[-len(lines) :], strict=True))
    for number, (before, became) in enumerate(pairs, 2):
        assert before != became or number in listed, before  # it says why it stays
    return head, tuple(pair for pair in pairs if pair[0] != pair[1])


def _lines() -> Iterator[str]:
    for name in sorted(names_of("torch")):
        leaf = name.removeprefix("torch.cuda.")
        other = leaf.startswith("_") or "." in leaf or leaf.endswith("Tensor")
        if leaf != name and not other and callable(getattr(torch.cuda, leaf, None)):
            yield from (f"print({name}({given}))" for given in ARGUMENTS.get(leaf, [""]))


def test_what_is_written_runs_on_every_device(device: str) -> None:
    head, pairs = uses()
    namespace: dict[str, object] = {}
    exec(compile(head, "head", "exec"), namespace)
    for before, after in pairs:
        with contextlib.redirect_stdout(None):
            try:
                exec(compile(after, before, "exec"), namespace)
            except Exception as error:
                raise AssertionError(f"{device}: {before} -> {after}") from error


def test_what_every_device_has_is_rewritten() -> None:
    done = {before.split("torch.cuda.")[1].split("(")[0] for before, _ in uses()[1]}
    everywhere = {
        name.removeprefix("torch.cuda.")
        for name in names_of("torch")
        if all(name.replace("torch.cuda", f"torch.{one}") in names_of(one) for one in DEVICES)
    }
    usual = {"manual_seed_all", "reset_peak_memory_stats", "set_device", "max_memory_allocated"}
    assert {name for name in everywhere if callable(getattr(torch.cuda, name, None))} <= done
    assert usual <= done
