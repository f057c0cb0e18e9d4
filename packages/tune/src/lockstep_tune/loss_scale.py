"""Scaling of the loss for float16: each run of autograd's engine begins with scaled gradients and gives plain ones."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from lockstep.plugin import OWN_PACKAGES
from lockstep.recorder import Recorder

_HOOKED = (
    (torch.Tensor, "register_hook"),
    (torch.nn.Module, "register_backward_hook"),
    (torch.nn.Module, "register_full_backward_hook"),
    (torch.nn.Module, "register_full_backward_pre_hook"),
)
"""By these a script looks at gradients within a run."""


class LossScale:
    """Scales where a run of autograd's engine begins and divides where a gradient leaves it.

    `Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` all run the engine, so a script gets plain
    gradients from each of them, to accumulate, clip, penalise or apply. An update of which a gradient is not finite is
    left out. A dynamic scale is then halved, and doubled after 2 000 good updates in a row: the defaults of
    `torch.amp.GradScaler`. Both are kept in the optimizer's `state_dict`.

    wanted: "dynamic", or a static scale, a power of two: dividing by it rounds nothing.
    recorder: Is told of the scale, and of updates that are left out, as of those of a script's own scaler.
    """

    KEY = "lockstep_loss_scale"
    """In the `state_dict` of each optimizer."""

    _FIRST, _INTERVAL = 65536.0, 2000

    def __init__(self, wanted: str | int, recorder: Recorder) -> None:
        self._recorder = recorder
        self._dynamic = wanted == "dynamic"
        self.scale = self._FIRST if self._dynamic else float(wanted)
        self.good = 0
        self._of_the_script = False
        self._runs: list[bool] = []  # those under way, the innermost last: whether leaves divide
        self._leaves: Any = WeakTensorKeyDictionary()
        self._kept: Any = WeakTensorKeyDictionary()

    def keep_in(self, optimizer: Optimizer) -> None:
        """Write scale and count into the optimizer's checkpoints, and read them back."""

        def add(_: Optimizer, values: dict[str, Any]) -> None:
            if not self._of_the_script:
                values[self.KEY] = {"scale": self.scale, "good": self.good}

        def take(_: Optimizer, values: dict[str, Any]) -> dict[str, Any]:
            kept = values.get(self.KEY)
            if kept is None:
                return values
            self.scale, self.good = kept["scale"], kept["good"]
            return {name: one for name, one in values.items() if name != self.KEY}

        optimizer.register_state_dict_post_hook(add)
        optimizer.register_load_state_dict_pre_hook(take)

    def leave_to_the_script(self) -> None:
        """The script has a scaler of its own, which does all of it."""
        self._of_the_script = True

    def patch(self) -> None:
        """Hand the gradients that a script looks at within a run to it without the scale."""
        for owner, name in _HOOKED:
            setattr(owner, name, self._registers(getattr(owner, name)))
        setattr(torch.Tensor, "retain_grad", self._retains(torch.Tensor.retain_grad))  # noqa: B010

    def begin(self) -> None:
        """Scale each run of the engine from now on."""
        if self._of_the_script:
            return
        engine = _Engine(torch.autograd.Variable._execution_engine, self._run)
        setattr(torch.autograd.Variable, "_execution_engine", engine)  # noqa: B010
        register_optimizer_step_pre_hook(self._before_update)

    # --- runs of the engine ---------------------------------------------------------------------------------------

    def _run(
        self,
        original: Callable[..., Any],
        outputs: Sequence[Any],
        gradients: Sequence[Any],
        keep: bool,
        create: bool,
        inputs: Sequence[Any] = (),
        *rest: Any,
        **keywords: Any,
    ) -> Any:
        accumulates = bool(keywords.get("accumulate_grad", False))
        is_within = bool(self._runs)  # of a checkpoint, say: what it is given is scaled already
        self._divide_at_leaves(outputs, is_within=is_within)
        self._runs.append(accumulates or not is_within)
        try:
            if is_within:
                return original(outputs, gradients, keep, create, inputs, *rest, **keywords)
            self._recorder.loss_scaled(self.scale)
            scaled = tuple(map(self._times, gradients))
            with self._dividing_kept(inputs if accumulates else ()):
                found = original(outputs, scaled, keep, create, inputs, *rest, **keywords)
            return found if accumulates else tuple(map(self._given, inputs, found))
        finally:
            self._runs.pop()

    def _divide_at_leaves(self, outputs: Sequence[Any], *, is_within: bool) -> None:
        """Have leaves divide; within a run only parameters: others may hand their gradient back to it."""
        for leaf in _leaves_above(outputs):
            if leaf not in self._leaves and (not is_within or isinstance(leaf, torch.nn.Parameter)):
                self._divide_at(leaf)

    def _divide_at(self, leaf: torch.Tensor) -> None:
        """Divide what arrives at a leaf before any other hook of it."""
        others = dict(leaf._backward_hooks or {})
        if others:
            leaf._backward_hooks.clear()  # type: ignore[union-attr]
        self._leaves[leaf] = leaf.register_hook(self._arrived)
        leaf._backward_hooks.update(others)  # type: ignore[union-attr]

    def _arrived(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self.scale if self._runs and self._runs[-1] else gradient

    @contextmanager
    def _dividing_kept(self, inputs: Sequence[Any]) -> Iterator[None]:
        """Divide the gradients that are kept at tensors that are no leaves."""
        inner = [one for one in inputs if isinstance(one, torch.Tensor) and not one.is_leaf]
        kept = list({id(one): one for one in (*self._kept, *inner)}.values())
        _change_gradients(kept, self._times)
        try:
            yield
        finally:
            _change_gradients(kept, self._plain)

    def _given(self, of: Any, gradient: Any) -> Any:
        """What `torch.autograd.grad` gives; a leaf has divided it."""
        divided = isinstance(of, torch.Tensor) and of in self._leaves
        return gradient if divided else self._plain(gradient)

    def _times(self, gradient: Any) -> Any:
        return gradient * self.scale if isinstance(gradient, torch.Tensor) else gradient

    def _plain(self, gradient: Any) -> Any:
        return gradient / self.scale if isinstance(gradient, torch.Tensor) else gradient

    # --- what a script looks at within a run ------------------------------------------------------------------------

    def _registers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def register(owner: Any, hook: Callable[..., Any], *rest: Any, **keywords: Any) -> Any:
            is_own = (
                str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] in OWN_PACKAGES
            )
            arrives_plain = isinstance(owner, torch.Tensor) and owner.is_leaf
            given = hook if is_own or arrives_plain else self._unscaled_for(hook)
            return original(owner, given, *rest, **keywords)

        return register

    def _unscaled_for(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook, updated=())
        def seen(*arguments: Any) -> Any:
            if not self._runs:
                return hook(*arguments)
            return tree_map(self._times, hook(*tree_map(self._plain, arguments)))

        return seen

    def _retains(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def retain_grad(tensor: torch.Tensor) -> None:
            original(tensor)
            if not tensor.is_leaf:
                self._kept[tensor] = True

        return retain_grad

    # --- updates ------------------------------------------------------------------------------------------------------

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        """Leave an update out by taking its gradients away, and move a dynamic scale."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        gradients = [one.grad for one in parameters if one.grad is not None]
        if _all_finite(gradients):
            self.good += 1
        else:
            self.good = 0
            self._recorder.update_skipped()
            for one in parameters:
                one.grad = None
        if self._dynamic and not self.good:
            self.scale /= 2.0
        elif self._dynamic and self.good % self._INTERVAL == 0:
            self.scale *= 2.0


_LEAF = "torch::autograd::AccumulateGrad"


class _Engine:
    """Autograd's engine, of which each run goes through `run`."""

    def __init__(self, engine: Any, run: Callable[..., Any]) -> None:
        self._engine = engine
        self.run_backward = functools.partial(run, engine.run_backward)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _leaves_above(outputs: Iterable[Any]) -> list[torch.Tensor]:
    """Return the leaves to which gradients of these outputs arrive."""
    edges = [one if isinstance(one, GradientEdge) else get_gradient_edge(one)
             for one in outputs if isinstance(one, GradientEdge) or one.requires_grad]  # fmt: skip
    nodes: list[Any] = [one.node for one in edges]
    seen, found = set(nodes), []
    while nodes:
        node = nodes.pop()
        if node.name() == _LEAF:
            found.append(node.variable)
        for above, _ in node.next_functions:
            if above is not None and above not in seen:
                seen.add(above)
                nodes.append(above)
    return found


def _change_gradients(tensors: Iterable[torch.Tensor], change: Callable[[Any], Any]) -> None:
    for one in tensors:
        if one.grad is not None:
            one.grad = change(one.grad)


def _all_finite(gradients: Sequence[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(one).all()) for one in gradients)
