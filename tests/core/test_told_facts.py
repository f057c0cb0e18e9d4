"""Sentences keep their data, wherever they go."""

from __future__ import annotations

import pickle

import pytest

from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.remarks import On, Remark
from lockstep.core.told_facts import Facts, Told, Untyped, worded

FACTS = {
    "side": "candidate", "rank": "rank0", "step": 3, "names": ("fc.weight", "fc.bias"), "count": 2, "of": 5,
    "at": "loss", "reference": "1", "candidate": "2", "reason": "why",
    "numbers": {
        "difference": 1e-3, "needed_bytes": 2e9, "allowed_bytes": 1e9, "furthest": 0.1, "floor": 0.5,
    },
}  # fmt: skip


@pytest.mark.parametrize("why", [*WhyNot, *On])
def test_every_kind_is_one_sentence_of_its_facts(why: WhyNot | On) -> None:
    said = worded(Facts(why, **FACTS))  # type: ignore[arg-type]  # by name
    assert said.isprintable()
    assert said == (NotCompared if isinstance(why, WhyNot) else Remark)(why, **FACTS)


def test_the_facts_of_a_sentence_are_kept_when_it_is_sent() -> None:
    one = Remark(On.LOSS, step=4, reference="1.5", candidate="1.25")
    again = pickle.loads(pickle.dumps(one))
    assert again == one == "the loss of step 4 is the first that differs: 1.5 / 1.25"
    assert again.facts == one.facts


def test_a_plain_text_is_told_as_it_is() -> None:
    assert Told.of("by a plug-in").facts == Facts(Untyped.TOLD, reason="by a plug-in")
    one = NotCompared(WhyNot.NOT_ALIGNED)
    assert NotCompared.of(one) is one
