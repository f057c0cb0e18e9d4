"""Marks in a trace: from which line and module a call is, which forwards only evaluate, what is computed again."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from lockstep.recorder import clean_tree, living, without_wrappers
from lockstep_tune.marks import AGAIN, EVALUATION, LINE, MODULE
from lockstep_tune.stacks import Stacks, line_of_the_user

_Fast = torch._C._profiler._RecordFunctionFast


class Marks:
    """Marks the calls of one step until it is closed.

    stacks: Numbers the stacks of calls.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._open = ExitStack()
        self._evaluated = _Evaluated()
        self._modules = _Modules(self._open, self._evaluated)
        self._open.enter_context(_Lines(stacks, self._evaluated))
        for owner, name in _UNSEEN:
            self._open.enter_context(_marked(owner, name, stacks))

    @property
    def validates(self) -> list[int]:
        """Modules, by `id`, that are trained and validated; none where the training uses what they gave without it."""
        return [] if self._evaluated.is_used else sorted(self._modules.trained)

    def close(self) -> None:
        """Mark no more."""
        self._open.close()


def _line_mark(stacks: Stacks) -> Any:
    """Return a mark with the line and the stack of the call that is under way."""
    line, _, file = line_of_the_user(3).partition(":")
    return _Fast(f"{LINE}{line}@{stacks.number(sys._getframe(2))}:{file}")


@contextmanager
def _marked(owner: Any, name: str, stacks: Stacks) -> Iterator[None]:
    """Mark the calls of a function with the line of the script that makes them."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def marked(*arguments: Any, **keywords: Any) -> Any:
        with _line_mark(stacks):
            return function(*arguments, **keywords)

    setattr(owner, name, marked)
    yield
    setattr(owner, name, function)


_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "reduce_scatter_tensor",
    "barrier",
)
_UNSEEN = (
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
    *((torch.distributed, name) for name in _COLLECTIVES if hasattr(torch.distributed, name)),
)
"""What a script calls that is not seen by `_Lines`: it takes no tensor, or hands it on below Python."""


class _Evaluated:
    """Follows what a forward without gradients gives, to see whether the training uses it."""

    def __init__(self) -> None:
        self.depth = 0
        self.is_used = False
        self._from: Any = WeakTensorKeyDictionary()

    def look(self, function: Any, arguments: Any, keywords: Any, result: Any) -> None:
        """Look at a call and what it gave."""
        if not (self.depth or self._from):
            return
        given = [one for one in tree_leaves((arguments, keywords)) if isinstance(one, torch.Tensor)]
        if not self.depth and not any(one in self._from for one in given):
            return
        if getattr(function, "__name__", "") in ("backward", "grad"):
            self.is_used = True
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter):
                self._from[one] = True


class _Lines(TorchFunctionMode):
    """Marks each call of torch's Python API with the line of the script that makes it."""

    def __init__(self, stacks: Stacks, evaluated: _Evaluated) -> None:
        super().__init__()
        self._stacks, self._evaluated = stacks, evaluated

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        """Run the call within a mark."""
        with _line_mark(self._stacks):
            result = function(*arguments, **(keywords or {}))
        self._evaluated.look(function, arguments, keywords, result)
        return result


class _Modules:
    """Marks each call of a module with its path, and the outermost ones that only evaluate."""

    def __init__(self, marks: ExitStack, evaluated: _Evaluated) -> None:
        self._paths = module_paths()
        self._evaluated = evaluated
        self._open: list[tuple[Any, ...]] = []
        self.trained: set[int] = set()
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        marks.callback(after.remove)
        marks.callback(before.remove)

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        own = without_wrappers(module)
        path = self._paths.get(id(own), type(module).__name__)
        trains = torch.is_grad_enabled() and module.training
        names = [f"{MODULE}{type(module).__name__}:{path}"]
        if trains:
            self.trained.add(id(own))
        elif not self._evaluated.depth:
            names.insert(0, f"{EVALUATION}{id(own)}")
        self._evaluated.depth += not trains
        marks = tuple(map(_Fast, names))
        for one in marks:
            one.__enter__()
        self._open.append((trains, *marks))

    def _leave(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if self._open:
            trains, *marks = self._open.pop()
            self._evaluated.depth -= not trains
            for one in reversed(marks):
                one.__exit__(None, None, None)


def module_paths() -> dict[int, str]:
    """The path of each module by its `id`; those of the largest model are plain."""
    modules = {id(one): one for one in map(without_wrappers, living(torch.nn.Module))}
    children = (child for one in modules.values() for child in one.children())
    inside = {id(without_wrappers(child)) for child in children}
    roots = [one for number, one in modules.items() if number not in inside]
    roots.sort(key=lambda root: -sum(one.numel() for one in root.parameters()))
    paths: dict[int, str] = {}
    seen: dict[torch.nn.Module, str] = {}
    for at, root in enumerate(roots):
        for path, module in clean_tree(root, type(root).__name__ if at else "", seen, {}):
            paths[id(module)] = path
    return paths


def mark_checkpoints() -> None:
    """Mark from now on what `torch.utils.checkpoint` computes again in backward, with the line that asks for it."""
    original = checkpoint.checkpoint

    @functools.wraps(original)
    def checkpointed(function: Any, *arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(function, *arguments, **keywords)
        again = _again(function, f"{AGAIN}{line_of_the_user()}")
        return original(again, *arguments, **keywords)

    setattr(checkpoint, "checkpoint", checkpointed)  # noqa: B010


def _again(function: Callable[..., Any], mark: str) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        if torch._C._current_graph_task_id() == -1:
            return function(*arguments, **keywords)
        with _Fast(mark):
            return function(*arguments, **keywords)

    return run


def note_threads(told: dict[str, Any]) -> None:
    """Note from now on the line of the script that sets how many threads torch computes with."""
    original = torch.set_num_threads

    @functools.wraps(original)
    def set_num_threads(count: int) -> None:
        told["line"] = line_of_the_user()
        original(count)

    setattr(torch, "set_num_threads", set_num_threads)  # noqa: B010
