"""What recording does to a TensorFlow training, and what it says where it cannot see."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Bare, Trained, command_of, compared, recorded

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.site import CallKind


@pytest.mark.parametrize(
    "words", [("convolutional", "eager"), ("convolutional", "function", "grappler"), ("replicas", "fit")]
)  # fmt: skip
def test_recording_changes_no_bit_of_five_steps(
    trained: Trained, bare_weights: Bare, words: tuple[str, ...]
) -> None:
    assert trained(*words).weights == bare_weights(*words)


def test_a_graph_that_grappler_rewrites_is_said_to_be_recorded_as_written(trained: Trained) -> None:
    rank = lockstep.open(trained("convolutional", "function").path).ranks["rank0"]
    assert any("Grappler" in gap.what for gap in rank.manifest.not_seen)
    rank = lockstep.open(trained("convolutional", "function", "grappler").path).ranks["rank0"]
    assert not any("Grappler" in gap.what for gap in rank.manifest.not_seen)


def test_xla_is_said_not_to_be_seen_and_changes_nothing(
    trained: Trained, bare_weights: Bare
) -> None:
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
    assert rank.complete_steps == (1, 3)


def test_iterations_of_a_loop_lie_in_the_layer_that_runs_it(trained: Trained) -> None:
    calls = lockstep.open(trained("recurrent", "function").path).ranks["rank0"].calls(0)
    (layer,) = (call for call in calls if call.site.op == "keras.layers.LSTM")
    cells = [
        call for call in calls if call.kind is CallKind.MODULE and "lstm_cell" in call.site.module
    ]
    assert len(cells) > 3
    assert {call.parent for call in cells} == {layer.id}


def test_a_process_of_its_own_is_armed_by_its_import_of_tensorflow(
    trained: Trained, tmp_path: Path
) -> None:
    words = ("convolutional", "function")
    alone = recorded(tmp_path / "alone", *words, command=command_of(*words))
    assert compared(trained(*words), alone).verdict is Verdict.AGREE
    assert alone.weights == trained(*words).weights


@pytest.mark.parametrize(
    "words", [("special", "eager"), ("special", "function"), ("session", "plain")]
)
@pytest.mark.parametrize("steps", [2, 4])
def test_the_training_ends_where_it_is_asked_to(
    trained: Trained, words: tuple[str, ...], steps: int
) -> None:
    found = trained(f"--max-steps={steps}", *words)
    assert "weights" not in found.printed
    assert f"ended after step {steps - 1}, as --max-steps asks" in found.said
    rank = lockstep.open(found.path).ranks["rank0"]
    assert (rank.complete_steps, rank.manifest.trained) == ((0, 1), steps)


def test_an_option_that_takes_pytorch_is_refused_in_a_sentence(trained: Trained) -> None:
    found = trained("--redact", "special", "eager")
    assert "TensorFlow is not recorded: --redact cannot be kept to" in found.said
    assert "nothing was recorded" in found.said
    assert "weights" in found.printed
