"""Inputs of modules that a candidate was given in the place of its own, as a rank's manifest lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GivenInput:
    """An input that a reference recorded, and the candidate's module was given.

    Parameters
    ----------
    step, module, call, name
        The step, the path of the module, which of its calls in the step, from 0, and the argument.
    own
        The digest of the candidate's own input, which is to be a result that was recorded.
    """

    step: int
    module: str
    call: int
    name: str
    own: str
