"""Functions of ours that the compiler must not look at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that Dynamo neither traces nor compiles; where it is not at work, the call costs next to nothing."""
    disabled = torch.compiler.disable(function)
    callback_now = torch._C._dynamo.eval_frame.get_eval_frame_callback

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or callback_now() is not None:
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return never_compiled(call)


def never_compiled(function: F) -> F:
    """Keep Dynamo from looking at a function that runs while it is at work."""
    sys.modules["torch._dynamo.eval_frame"].skip_code(function.__code__)
    return function
