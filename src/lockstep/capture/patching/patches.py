"""One attribute of torch, or of another package, that is replaced for a time."""

from __future__ import annotations

from collections.abc import Callable
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
