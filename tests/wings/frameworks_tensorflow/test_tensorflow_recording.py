"""What recording does to a TensorFlow training, and what it says where it cannot see."""

from __future__ import annotations

import pytest
from conftest import Trained, bare_weights, compared

import lockstep
from lockstep.core.finding import Verdict


@pytest.mark.parametrize(
    "words", [("convolutional", "eager"), ("convolutional", "function", "grappler"), ("replicas", "fit")]
)  # fmt: skip
def test_recording_changes_no_bit_of_five_steps(trained: Trained, words: tuple[str, ...]) -> None:
    assert trained(*words).weights == bare_weights(*words)


def test_a_graph_that_grappler_rewrites_is_said_to_be_recorded_as_written(trained: Trained) -> None:
    rank = lockstep.open(trained("convolutional", "function").path).ranks["rank0"]
    assert any("Grappler" in gap.what for gap in rank.manifest.not_seen)
    rank = lockstep.open(trained("convolutional", "function", "grappler").path).ranks["rank0"]
    assert not any("Grappler" in gap.what for gap in rank.manifest.not_seen)


def test_xla_is_said_not_to_be_seen_and_changes_nothing(trained: Trained) -> None:
    found = trained("convolutional", "jit")
    assert "what XLA compiles is not seen" in found.said
    assert "--compile-eager" in found.said
    assert found.weights == bare_weights("convolutional", "jit")


def test_compile_eager_opens_what_xla_would_compile(trained: Trained) -> None:
    found = compared(
        trained("convolutional", "eager"), trained("--compile-eager", "convolutional", "jit")
    )
    assert found.verdict is Verdict.AGREE
    assert found.compared > 100


def test_the_chosen_steps_alone_are_recorded(trained: Trained) -> None:
    rank = lockstep.open(trained("--steps=1,3", "special", "function").path).ranks["rank0"]
    assert (rank.complete_steps, rank.manifest.trained) == ((1, 3), 5)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_the_training_ends_where_it_is_asked_to(trained: Trained, mode: str) -> None:
    found = trained("--max-steps=2", "special", mode)
    assert "weights" not in found.printed
    assert "ended after step 1, as --max-steps asks" in found.said


def test_an_option_that_takes_pytorch_is_refused_in_a_sentence(trained: Trained) -> None:
    found = trained("--redact", "special", "eager")
    assert "TensorFlow is not recorded: --redact cannot be kept to" in found.said
    assert "nothing was recorded" in found.said
    assert "weights" in found.printed
