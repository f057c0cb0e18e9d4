"""PyTorch against Keras: names are proposed, weights converted, and a mistake of carrying over is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lockstep
from lockstep.align.mapping import NameMapping
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Role
from lockstep.report.comparison.verdict_words import headline

Pair = Callable[..., tuple[Path, Path, Path]]


def compared(pair: Pair, model: str, fault: str = "sound") -> Comparison:
    reference, candidate, mapping = pair(model, fault)
    return lockstep.compare_recordings(reference, candidate, mapping=mapping)


def test_an_lstm_is_mapped_with_the_sum_of_its_biases(pair: Pair) -> None:
    names = NameMapping.read(pair("recurrent")[2])
    assert names.parameters["lstm.bias_ih_l0 + lstm.bias_hh_l0"].endswith("bias")
    assert names.layouts["lstm.weight_ih_l0"] == "OI -> IO"
    assert not names.guesses


@pytest.mark.parametrize("model", ["convolutional", "recurrent"])
def test_a_sound_pair_agrees(pair: Pair, model: str) -> None:
    found = compared(pair, model)
    assert found.verdict is Verdict.AGREE, headline(found)
    # the bias before a normalisation, whose gradient is rounding alone, and the sum of two biases are among it
    wanted = {"convolutional": "c1.bias", "recurrent": "lstm.bias_ih_l0 + lstm.bias_hh_l0"}[model]
    roles = {one.pair.present.role for one in found.findings if one.pair.present.name == wanted}
    assert roles >= {Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER}


@pytest.mark.parametrize(
    ("model", "fault", "place"),
    [
        ("convolutional", "same", "c2"),
        ("convolutional", "hwio", "c1"),
        ("convolutional", "flatten", ""),
        ("recurrent", "gates", "lstm"),
        ("recurrent", "forget", "lstm"),
    ],
)
def test_a_mistake_of_carrying_over_is_named(
    pair: Pair, model: str, fault: str, place: str
) -> None:
    found = compared(pair, model, fault)
    print(headline(found))
    origin = found.origins[0]
    assert (origin.step, origin.module) == (0, place)
