"""The operators that a form comes down to on a device: what the device lacks is put in its own form in turn."""

from __future__ import annotations

from typing import Any

from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.devices.support_list import COMPOSED, Standing, SupportList
from lockstep.replay.calls.rebuild import tensors_in
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.torch_state import REFUSALS
from lockstep.replay.equal_forms.forms import forms_of

_MOST_DEEP = 8
# fmt: off
_EVERYWHERE = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "as_strided", "view", "_reshape_alias",
    "_unsafe_view", "alias", "detach", "detach_", "set_", "resize_", "lift_fresh", "resolve_conj", "resolve_neg",
    "to", "_to_copy", "copy_", "fill_", "zero_", "_local_scalar_dense", "item",
})
# fmt: on
"""Without these there is no tensor on a device at all, and none is filled, copied or read: no list need say so."""

_WITHOUT_KERNELS = (DispatchKey.HPU, DispatchKey.IPU, DispatchKey.PrivateUse1, DispatchKey.XPU)


class Lacks(CannotReplay):
    """A form needs an operator that the device lacks."""


class Parts(TorchDispatchMode):
    """Runs what is called within it as the device would, and notes what that comes down to.

    support: What the device has.
    only_note: Whether what is lacking is noted and run as it is, rather than put in another form.

    found, lacking: What was called that the device has, and what it lacks, in order.
    replaced: What was put in another form within the form, with that form's words.
    """

    def __init__(self, support: SupportList, *, only_note: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._support, self._only_note = support, only_note
        self._deep = 0
        self.found: dict[str, None] = {}
        self.lacking: dict[str, None] = {}
        self.replaced: dict[str, str] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, its parts, or its form."""
        kwargs = kwargs or {}
        name = func.name()
        if name.partition("::")[2].partition(".")[0] in _EVERYWHERE:
            return func(*args, **kwargs)
        dtypes = {str(one.dtype).removeprefix("torch.") for one in tensors_in([args, kwargs])}
        answer = self._support.answer(name, dtypes)
        if answer.standing is Standing.SUPPORTED and answer.why != COMPOSED:
            self.found[name] = None
            return func(*args, **kwargs)
        if self._deep >= _MOST_DEEP:
            raise Lacks(f"it comes down to {name}, which the list does not have")
        self._deep += 1
        try:
            if answer.standing is Standing.SUPPORTED:
                return self._composed(func, args, kwargs)
            return self._in_its_form(func, args, kwargs)
        finally:
            self._deep -= 1

    def _composed(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            with self:
                return composed(func, args, kwargs)
        except Lacks:
            return self._in_its_form(func, args, kwargs)

    def _in_its_form(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        if self._only_note:
            self.lacking[func.name()] = None
            return func(*args, **kwargs)
        for form in forms_of(func):
            try:
                with self:
                    result = form.run(*args, **kwargs)
            except (CannotReplay, *REFUSALS):
                continue
            self.replaced[func.name()] = form.words
            return result
        raise Lacks(f"it comes down to {func.name()}, which the list does not have")


def composed(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator as on a backend that has no kernel of its own for it: by what torch composes it of."""
    free = (key for key in _WITHOUT_KERNELS if not func.has_kernel_for_dispatch_key(key))
    return func.redispatch(DispatchKeySet(next(free)), *args, **kwargs)
