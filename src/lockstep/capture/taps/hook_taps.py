"""Where hooks on gradients come to torch: on a tensor, and on a module, which torch sets around each call of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.utils.hooks import BackwardHook

from lockstep.capture.patching.patches import Patch
from lockstep.capture.taps.listener import Listener


class Tapping(Protocol):
    """Whether the taps are in place, and who hears: `Taps`."""

    installed: bool
    listener: Listener


def hook_patches(taps: Tapping) -> list[Patch]:
    """What is replaced while a step is recorded."""

    def on_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def register_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            told = taps.listener.hook_told(tensor, hook) if taps.installed else hook
            return original(tensor, told)

        return register_hook

    def around_module(hooks: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def setup(around: Any, args: Any) -> Any:
                run = functools.partial(original, around, args)
                if not taps.installed or not getattr(around, hooks):
                    return run()
                return taps.listener.module_hooks_set(around, hooks, args, run)

            return setup

        return wrap

    return [
        Patch(torch.Tensor, "register_hook", on_tensor),
        Patch(BackwardHook, "setup_input_hook", around_module("user_hooks")),
        Patch(BackwardHook, "setup_output_hook", around_module("user_pre_hooks")),
    ]
