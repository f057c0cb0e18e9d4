"""The hooks at all optimizers' steps: none is added or removed while a thread goes through them."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from lockstep.capture.updates.step_hooks import StepHook, give_back_places, steps_here


def _count() -> int:
    return len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks)


def _optimizer() -> torch.optim.Optimizer:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


@pytest.mark.parametrize(
    "register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook]
)
def test_a_hook_leaves_while_another_thread_is_in_it(register: object) -> None:
    # given a thread that stands in a hook of its step, and a hook of somebody else behind that
    before = _count()
    stands, goes_on = threading.Event(), threading.Event()
    called: list[str] = []

    def hook(*_: object) -> None:
        steps_here()
        called.append("ours")
        stands.set()
        assert goes_on.wait(60)

    ours = StepHook(register, hook)  # type: ignore[arg-type]
    behind = register(lambda *_: called.append("behind"))  # type: ignore[operator]
    errors: list[BaseException] = []
    optimizer = _optimizer()

    def train() -> None:
        try:
            optimizer.step()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    assert stands.wait(60)

    # when it is taken away meanwhile
    ours.take_away()
    goes_on.set()
    thread.join()

    # then that step is made, and nothing is called in the next; its place is given back where no thread may be in it
    assert (errors, called) == ([], ["ours", "behind"])
    optimizer.step()
    assert called == ["ours", "behind", "behind"]
    behind.remove()
    give_back_places()
    assert _count() == before


def test_a_hook_that_takes_itself_away_leaves_the_hooks_behind_it_in_place() -> None:
    # given a hook that takes itself away, with another one behind
    before = _count()
    called: list[str] = []

    def hook(*_: object) -> None:
        called.append("ours")
        ours.take_away(called_now=True)

    ours = StepHook(register_optimizer_step_post_hook, hook)
    behind = register_optimizer_step_post_hook(lambda *_: called.append("behind"))
    optimizer = _optimizer()

    # when two steps are made
    optimizer.step()
    optimizer.step()

    # then it was called in the first alone, the other in both
    assert called == ["ours", "behind", "behind"]
    behind.remove()
    give_back_places()
    assert _count() == before


def test_of_one_thread_alone_nothing_is_left() -> None:
    # given a hook in a process without other threads
    before = _count()
    hook = StepHook(register_optimizer_step_post_hook, lambda *_: None)

    # when it is taken away
    hook.take_away()

    # then its place is gone at once
    assert _count() == before
