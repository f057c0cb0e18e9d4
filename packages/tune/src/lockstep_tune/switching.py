"""Set the switches of `lockstep bisect` in the training's process, as soon as torch is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from lockstep.recorder import Recorder, living, rank_and_world_size
from lockstep_tune.marking import module_paths
from lockstep_tune.switches import VARIABLE


def begin(recorder: Recorder) -> None:
    """Switch off in this process what `lockstep bisect` asked for."""
    request = json.loads(os.environ[VARIABLE])
    for name in request["without"]:
        _OFF[name]()
    recorder.hear(_Late(request["without"], request["float32"], Path(request["notes"])))
    if os.environ.get("TORCH_BISECT_SUBSYSTEM"):
        _note_applications()


class _Late:
    """Switches once more when the training begins: scripts set some switches after torch is loaded."""

    def __init__(self, without: list[str], float32: list[str], notes: Path) -> None:
        self._without, self._float32, self._notes = without, frozenset(float32), notes

    def step_begins(self, number: int) -> None:
        """Take away what the script has set since."""
        if number > 0:
            return
        for name in self._without:
            if name in _SET_BY_SCRIPTS:
                _OFF[name]()
        if self._float32:
            _run_in_float32(self._float32)

    def finish(self) -> None:
        """Leave what a part of inductor was applied to."""
        if _applications and rank_and_world_size()[0] == 0:
            self._notes.write_text(json.dumps(_applications), encoding="utf-8")


def _without_fusion() -> None:
    """Every operator gets a kernel of its own: nothing is inlined into its reader, and no two kernels are joined."""
    from torch._inductor import config, scheduler

    # What is set by hand wins over what these were: each value is written to memory before it is read.
    config.realize_opcount_threshold = config.realize_reads_threshold = 0
    setattr(scheduler.Scheduler, "can_fuse", lambda *_: False)  # noqa: B010
    config.force_disable_caches = True


def _without_amp() -> None:
    enter: Any = torch.autocast.__enter__

    def enter_off(self: Any) -> Any:
        self._enabled = False
        return enter(self)

    setattr(torch.autocast, "__enter__", enter_off)  # noqa: B010


def _without_attention() -> None:
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def _without_fused_optimizer() -> None:
    def plain(optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for name in ("foreach", "fused"):
                if name in group:
                    group[name] = False

    register_optimizer_step_pre_hook(plain)


def _without_onednn() -> None:
    torch.backends.mkldnn.set_flags(False)


def _without_tf32() -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def _deterministic() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


_OFF: dict[str, Callable[[], None]] = {
    "fusion": _without_fusion,
    "amp": _without_amp,
    "attention": _without_attention,
    "optimizer": _without_fused_optimizer,
    "onednn": _without_onednn,
    "tf32": _without_tf32,
    "nondeterministic": _deterministic,
}
_SET_BY_SCRIPTS = frozenset({"attention", "onednn", "tf32", "nondeterministic"})


def _run_in_float32(paths: frozenset[str]) -> None:
    """Run some modules in float32 within autocast: their inputs are cast, and autocast is off inside."""
    found = module_paths()
    for module in living(torch.nn.Module):
        if found.get(id(module)) in paths:
            module.__dict__["forward"] = _in_float32(module)


def _in_float32(module: torch.nn.Module) -> Callable[..., Any]:
    forward = module.forward
    device = next((one.device.type for one in module.parameters()), "cpu")

    def in_float32(*arguments: Any, **keywords: Any) -> Any:
        plain = {name: _as_float32(one) for name, one in keywords.items()}
        with torch.autocast(device, enabled=False):
            return forward(*map(_as_float32, arguments), **plain)

    return in_float32


def _as_float32(value: Any) -> Any:
    is_low = (
        isinstance(value, torch.Tensor) and value.is_floating_point() and value.element_size() < 4
    )
    return value.float() if is_low else value


_applications: list[str] = []


def _note_applications() -> None:
    """Note each application of the part of inductor that is searched, in order: torch counts them alone."""
    from torch._inductor.compiler_bisector import CompilerBisector

    disable = CompilerBisector.disable_subsystem

    def noting(backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        if (backend, subsystem) == (
            CompilerBisector.get_backend(),
            CompilerBisector.get_subsystem(),
        ):
            _applications.append(debug_info() if debug_info is not None else subsystem)
        return disable(backend, subsystem, debug_info)

    setattr(CompilerBisector, "disable_subsystem", noting)  # noqa: B010
