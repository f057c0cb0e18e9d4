"""What nothing trained depends on is told without reading a step where the call itself tells it."""

from __future__ import annotations

import pytest

from lockstep.core.dependence import Dependence
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase, Site


def call_of(kind: CallKind, module: str) -> Call:
    """A call that nothing enters or leaves."""
    site = Site(module, "relu", 0, Phase.FORWARD)
    return Call(1, "rank0", 0, kind, site, "", -1, 0, (), {}, False, ())


@pytest.mark.parametrize(
    ("kind", "module"), [(CallKind.OPERATOR, "block.act"), (CallKind.MODULE, "block")]
)
def test_no_step_is_read_for_a_call_of_a_module(kind: CallKind, module: str) -> None:
    # given a call inside of a module, or of one, then it is none of those, and no step is read
    assert not Dependence([0, 1], lambda step: pytest.fail(f"{step}")).beside(call_of(kind, module))


def test_an_operator_outside_of_modules_is_looked_up() -> None:
    apart = call_of(CallKind.OPERATOR, "")
    update = call_of(CallKind.OPTIMIZER, "")
    # given a step that trains, and an operator outside of which nothing takes anything
    assert Dependence([0], lambda _: [apart, update]).beside(apart)
