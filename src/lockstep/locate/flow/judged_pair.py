"""A pair judged by its inputs, before the decision whether it is an origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from lockstep.align.settings import Setting
from lockstep.align.step import Aligned
from lockstep.judge.protocol import Judgement
from lockstep.judge.tolerances import ILL_CONDITIONED
from lockstep.locate.flow.origins import Place
from lockstep.measure.measured_pair import Measured


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A pair with everything that the walk decides by.

    Parameters
    ----------
    item
        The call that the pair is met at.
    measured, judgement
        How far apart its sides are, and whether that is explained.
    entering
        What it was computed from.
    place
        Gives where an origin would be.
    settings
        What says that the call was made with other settings.
    chosen
        Settings that the script chose otherwise.
    background
        What it also depends on, without having been judged against it.
    name
        What an origin's words call it, "" where its place says enough.
    cause
        What origins of one cause have in common, None where each is its own.
    """

    item: Aligned
    measured: Measured
    judgement: Judgement
    entering: Sequence[Measured]
    place: Callable[[], Place]
    settings: Sequence[Setting] = ()
    chosen: tuple[Setting, ...] = ()
    background: Sequence[Measured] = ()
    name: str = ""
    cause: tuple[Hashable, ...] | None = None

    @property
    def behind(self) -> tuple[Measured, ...]:
        """All that a difference may be inherited from."""
        return (*self.entering, *self.background)

    @property
    def is_amplified(self) -> bool:
        """Whether a difference grows by far more than operators usually let it: ill-conditioned here."""
        largest = max((one.relative for one in self.entering if one.floating), default=0.0)
        return 0.0 < largest * ILL_CONDITIONED < self.measured.difference < math.inf
