"""The same tokens through a model at once, and a few at a time through a cache: compared token by token."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from made_ranks import made

from lockstep import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.site import CallKind, Role
from lockstep.store.reader import Recording

SCRIPT = Path(__file__).with_name("sampled_tokens.py")
TRAINERS = ("llama+trainer", "llama+trainer+padded", "gpt2+trainer", "gpt2+trainer+padded")
SOUND = (
    "llama+generate",
    "llama+generate+static",
    "llama+generate+padded",
    "llama+chunks",
    "llama+chunks+static",
    "llama+chunks+padded",
    "llama+eager+generate",
    "llama+eager+chunks+padded",
    "gpt2+generate",
    "gpt2+generate+padded",
    "gpt2+chunks",
    "gpt2+eager+chunks",
)
FAULTS = {
    "llama+late-place": ("", "position_ids"),
    "llama+place-of-padding+padded": ("", "position_ids"),
    "llama+sees-padding+padded": ("", "attention_mask"),
    "llama+lost-mask": ("", "attention_mask"),
    "llama+stale-cache": ("model.layers.1.self_attn", "result"),
    "llama+scaled-cache": ("model.layers.0.self_attn", "result"),
    "llama+other-scale": ("model.layers.1.self_attn", "result"),
    "llama+tempered": ("lm_head", "result"),
    "gpt2+late-place": ("", "position_ids"),
    "gpt2+stale-cache+chunks": ("transformer.h.1.attn", "result"),
    "gpt2+sees-padding+padded": ("", "attention_mask"),
    "gpt2+lost-mask+chunks": ("", "attention_mask"),
}


@pytest.fixture(scope="module")
def runs(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, in one process."""
    folder = tmp_path_factory.mktemp("tokens")
    command = [str(programs / "python"), str(SCRIPT), str(folder), *TRAINERS, *SOUND, *FAULTS]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return folder


def _compared(runs: Path, name: str) -> Comparison:
    trainer = f"{name.partition('+')[0]}+trainer{'+padded' * ('padded' in name)}"
    return compare_recordings(runs / trainer, runs / name, rerun=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_sampler_agrees_with_its_trainer(runs: Path, name: str) -> None:
    found = _compared(runs, name)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    assert any("log-probabilities: those of" in note for note in found.notes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAULTS)
def test_a_slip_of_a_sampler_is_named_at_its_operator(runs: Path, name: str) -> None:
    found = _compared(runs, name)
    assert found.verdict is Verdict.DIVERGED
    first, (module, tensor) = found.origins[0], FAULTS[name]
    assert first.module == module
    assert (first.tensor or "").endswith(tensor)


# --- made up


IDS = np.array([[3, 1, 4, 1], [5, 2, 6, 5]])
TABLE = np.linspace(-1, 1, 8 * 7).reshape(8, 7).astype("f4")


def _calls(
    ids: np.ndarray, begin: int, number: int, scores: np.ndarray | None = None
) -> list[ReadCall]:
    """A call of a model, and an embedding within it."""
    scores = TABLE[ids] if scores is None else scores
    tokens = ReadTensor(Role.INPUT, "args.0", ids)
    result = ReadTensor(Role.OUTPUT, "result", scores)
    return [
        ReadCall(0, "", "Model", [tokens, result], kind=CallKind.MODULE),
        ReadCall(0, "", "torch.embedding", [tokens, result], parent=2 * number),
    ]


def _sampler(path: Path, ids: np.ndarray, *, off: float = 0.0) -> Recording:
    pieces = [ids[:, :2], ids[:, 2:3], ids[:, 3:]]
    calls = []
    for number, piece in enumerate(pieces):
        scores = TABLE[piece] + np.float32(off if number == 2 else 0)
        calls += _calls(piece, 0, number, scores)
    return made(path, calls)


def test_pieces_of_the_same_tokens_are_one_call(tmp_path: Path) -> None:
    trainer = made(tmp_path / "trainer", _calls(IDS, 0, 0))
    found = compare_recordings(trainer, _sampler(tmp_path / "sampler", IDS))
    assert (found.verdict, found.unaligned_candidate, found.not_compared) == (Verdict.AGREE, 0, ())
    assert any("log-probabilities: those of 6 tokens" in note for note in found.notes)
    off = compare_recordings(trainer, _sampler(tmp_path / "off", IDS, off=0.01))
    assert off.verdict is Verdict.DIVERGED
    assert (off.origins[0].role, off.origins[0].op) == (Role.OUTPUT, "Model")


def test_other_tokens_are_not_put_together(tmp_path: Path) -> None:
    # given a sampler whose last token is another one
    other = IDS.copy()
    other[1, 3] = 7
    trainer = made(tmp_path / "trainer", _calls(IDS, 0, 0))
    # then none of its calls is the partner of one on all tokens, and nothing agrees
    found = compare_recordings(trainer, _sampler(tmp_path / "sampler", other))
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    assert "of the same samples" in " ".join(found.not_compared)


def test_without_what_the_model_returns_nothing_agrees(tmp_path: Path) -> None:
    # given scores of which no axis is that of the tokens
    trainer = made(tmp_path / "trainer", _calls(IDS, 0, 0, np.ones((2, 3, 3, 7), "f4")))
    found = compare_recordings(trainer, _sampler(tmp_path / "sampler", IDS))
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    assert "what the model returns could not be put together" in " ".join(found.not_compared)
