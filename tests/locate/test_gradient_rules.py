"""The rules of `locate.gradient_causes` stand in the order that they need."""

from __future__ import annotations

import pytest

from lockstep.locate.causes.gradient_causes import RULES, GradientCauses, Rule, in_order


def rule(name: str, *, before: tuple[str, ...] = (), settles: tuple[str, ...] = ()) -> Rule:
    return Rule(name, lambda _: True, before, settles)


def test_each_rule_stands_before_those_that_it_must_come_before() -> None:
    assert in_order(*RULES) == RULES


def test_a_missing_clip_is_found_by_its_name() -> None:
    (clipping,) = (one for one in RULES if "clipping" in one.name)
    assert clipping.finds is GradientCauses._clipped_or_scaled


@pytest.mark.parametrize(
    "rules",
    [
        [rule("clipping"), rule("loss scaling", before=("clipping",))],
        [rule("clipping"), rule("in part", settles=("clipping",))],
        [rule("loss scaling", before=("no such rule",))],
        [rule("clipping", before=("clipping",))],
    ],
)
def test_a_rule_behind_one_that_it_must_come_before_is_refused(rules: list[Rule]) -> None:
    with pytest.raises(ValueError, match="must come before"):
        in_order(*rules)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        in_order(rule("clipping"), rule("clipping"))


def test_what_has_found_its_cause_settles_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # given three rules, of which the first finds its cause and settles the second,
    asked = []

    def asks(name: str, **more: tuple[str, ...]) -> Rule:
        return Rule(name, lambda _: asked.append(name) is None, **more)

    rules = in_order(asks("in part", settles=("clipping",)), asks("clipping"), asks("factor"))
    monkeypatch.setattr("lockstep.locate.causes.gradient_causes.RULES", rules)
    # when a step is looked at, then the second is not asked
    GradientCauses.run(object.__new__(GradientCauses))
    assert asked == ["in part", "factor"]
