"""One attribute of torch, or of another package, that is replaced for a time."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any


class Patch:
    """An attribute that is replaced for a time.

    Parameters
    ----------
    owner, name
        The class or module, and the attribute.
    wrap
        Makes the replacement from the original; the replacement must pass on what it does not want.
    """

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._wrap = owner, name, wrap
        self._original: Any = None
        self._ours: Any = None
        self._stays = False

    def put(self) -> None:
        """Replace the attribute, unless a later patch by somebody else still calls ours."""
        if not self._stays or vars(self._owner)[self._name] is self._original:
            self._original = vars(self._owner)[self._name]
            self._ours = self._wrap(self._original)
            setattr(self._owner, self._name, self._ours)

    def take_back(self) -> None:
        """Put the original back, unless somebody else has replaced ours: then it must stay."""
        if self._ours is None:
            return
        self._stays = vars(self._owner)[self._name] is not self._ours
        if not self._stays:
            setattr(self._owner, self._name, self._original)
            self._original = self._ours = None


class BodyPatch:
    """What a class method of Python's does is replaced for a time, also for whoever has taken it from the class before.

    `name = Kind.method` in a script is the function itself, which a new attribute of the class does not reach. So its
    code is exchanged.

    method: The function of the class method.
    wrap: Makes the replacement from a function that does what the method did. Both take the class first.
    """

    def __init__(self, method: FunctionType, wrap: Callable[[Any], Callable[..., Any]]) -> None:
        self._method, self._wrap = method, wrap
        self._code: CodeType | None = None
        self._ours: CodeType | None = None

    def put(self) -> None:
        """Replace what it does, unless a later patch by somebody else still calls ours."""
        if self._ours is not None:
            return
        method, self._code = self._method, self._method.__code__
        original = FunctionType(
            self._code, method.__globals__, method.__name__, method.__defaults__, method.__closure__
        )
        original.__kwdefaults__ = method.__kwdefaults__
        self._ours = method.__code__ = _calling(self._wrap(original), self._code)

    def take_back(self) -> None:
        """Put the original back, unless somebody else has replaced ours: then it must stay."""
        if (
            self._ours is not None
            and self._code is not None
            and self._method.__code__ is self._ours
        ):
            self._method.__code__ = self._code
            self._code = self._ours = None


_REPLACEMENT = "the replacement"


def _calling(replacement: Callable[..., Any], original: CodeType) -> CodeType:
    """Code that calls a function, and may stand in place of code that closes over as many variables."""

    def called(cls: type, *args: Any, **kwargs: Any) -> Any:
        run: Any = "the replacement"
        return run(cls, *args, **kwargs)

    constants = called.__code__.co_consts
    return called.__code__.replace(
        co_consts=tuple(replacement if one == _REPLACEMENT else one for one in constants),
        co_freevars=original.co_freevars,
    )
