"""The same tokens padded, packed into one row, or taken as an engine likes: compared token by token."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from made_ranks import made

from lockstep import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.manifest import TOKENS
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.reader import Recording

SCRIPT = Path(__file__).with_name("packed_tokens.py")
SOUND = (
    ("padded", "packed"),
    ("packed", "padded"),
    ("padded", "packed+dealt"),
    ("padded", "packed+two"),
    ("packed+two", "packed"),
    ("padded+unmasked", "packed"),
    ("padded+full-mask", "packed+dealt"),
    ("score", "score+packed"),
    ("score", "engine+told"),
    ("engine+told", "score"),
)
FAULTS = {
    # attention across documents; positions that are not restarted; a token lost, and another one in its place
    ("padded", "packed+across"): "forward blocks.0.attention .*scaled_dot_product_attention result",
    ("packed+across", "padded"): "forward blocks.0.attention .*scaled_dot_product_attention result",
    ("padded", "packed+running"): "data  batch kwargs.position_ids",
    ("padded", "packed+lost"): "data  lockstep.tokens ids",
    ("padded", "packed+other"): "data  lockstep.tokens ids",
    # the first token of the next document as label of the last; padding that counts, by its labels or in the mean
    ("padded", "packed+next-document"): "data  batch args.0 of torch.Tensor.flatten",
    ("padded+counts-padding", "packed"): "data  batch args.0 of torch.Tensor.flatten",
    ("padded+divides-by-all", "packed"): "forward  loss loss",
    ("score", "engine+told+late-place"): "forward blocks.0 Block args.0",
    (
        "score",
        "engine+told+other-request",
    ): "forward blocks.0.attention .*scaled_dot_product_attention",
    ("score", "engine+told+tempered"): "forward head",
}


@pytest.fixture(scope="module")
def runs(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, in one process."""
    folder = tmp_path_factory.mktemp("packed")
    names = sorted({name for pair in (*SOUND, *FAULTS) for name in pair})
    command = [str(programs / "python"), str(SCRIPT), str(folder), *names]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return folder


def _place(found: Comparison) -> str:
    first = found.origins[0]
    return f"{first.phase.value} {first.module} {first.op} {first.tensor}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", SOUND, ids="-".join)
def test_the_same_tokens_agree(runs: Path, pair: tuple[str, str]) -> None:
    found = compare_recordings(*(runs / one for one in pair), rerun=False)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    assert any("log-probabilities: those of" in note for note in found.notes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", FAULTS, ids="-".join)
def test_a_slip_is_named_at_its_operator(runs: Path, pair: tuple[str, str]) -> None:
    found = compare_recordings(*(runs / one for one in pair), rerun=False)
    assert found.verdict is Verdict.DIVERGED
    assert re.match(FAULTS[pair], _place(found))


# --- made up

DOCUMENTS = [[3, 1, 4], [1, 5], [2, 6, 5, 3]]
TABLE = np.linspace(-1, 1, 8 * 7).reshape(8, 7).astype("f4")


def _calls(ids: np.ndarray, scores: np.ndarray, mask: np.ndarray | None = None) -> list[ReadCall]:
    """A call of a model on ids, with scores in rows of their own, and an embedding within it."""
    given = [ReadTensor(Role.INPUT, "args.0", ids), ReadTensor(Role.OUTPUT, "result", scores)]
    masked = [] if mask is None else [ReadTensor(Role.INPUT, "kwargs.attention_mask", mask)]
    return [
        ReadCall(0, "", "Model", [*given, *masked], kind=CallKind.MODULE),
        ReadCall(0, "", "torch.embedding", given, parent=0),
    ]


def _padded(path: Path) -> Recording:
    ids = np.zeros((3, 4), np.int64)
    mask = np.zeros_like(ids)
    for row, document in enumerate(DOCUMENTS):
        ids[row, : len(document)], mask[row, : len(document)] = document, 1
    return made(path, _calls(ids, TABLE[ids] * (1 + mask[..., None]).astype("f4"), mask))


def _packed(path: Path, documents: list[list[int]], *, off: float = 0.0) -> Recording:
    ids = np.array([[token for document in documents for token in document]])
    scores = TABLE[ids] * np.float32(2)
    scores[0, 1] += np.float32(off)
    return made(path, _calls(ids, scores))


def test_documents_in_another_order_are_the_same_tokens(tmp_path: Path) -> None:
    # given padded documents, whose padding has other scores, and the same ones packed, the last one first
    padded = _padded(tmp_path / "padded")
    found = compare_recordings(padded, _packed(tmp_path / "packed", DOCUMENTS[::-1]))
    assert (found.verdict, found.unaligned_candidate, found.not_compared) == (Verdict.AGREE, 0, ())
    assert any("log-probabilities: those of 6 tokens" in note for note in found.notes)
    # then scores that are off are a fault
    off = compare_recordings(padded, _packed(tmp_path / "off", DOCUMENTS, off=0.01))
    assert off.verdict is Verdict.DIVERGED
    assert (off.origins[0].role, off.origins[0].op) == (Role.OUTPUT, "Model")


def test_a_lost_token_is_named(tmp_path: Path) -> None:
    lost = _packed(tmp_path / "packed", [DOCUMENTS[0][:2], *DOCUMENTS[1:]])
    found = compare_recordings(_padded(tmp_path / "padded"), lost)
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].op, found.origins[0].tensor) == (TOKENS, "ids")
    assert any("lacks 1 of the other's, first token 3 of row 0" in note for note in found.notes)


def test_tokens_of_other_documents_are_not_put_together(tmp_path: Path) -> None:
    other = _packed(tmp_path / "packed", [[7, 7], [6], [1]])
    found = compare_recordings(_padded(tmp_path / "padded"), other)
    assert found.verdict is not Verdict.AGREE


def test_an_engine_that_tells_its_tokens_is_compared_by_them(tmp_path: Path) -> None:
    # given an engine that takes parts of two rows at once, hides ids, and scores the last token of each
    ids = np.array([[3, 1, 4, 1], [5, 2, 6, 5]])

    def served(path: Path, off: float) -> Recording:
        calls: list[ReadCall] = []
        for parts in ([(0, 0, 3), (1, 0, 1)], [(0, 3, 4), (1, 1, 4)]):
            places = [(row, place) for row, begin, end in parts for place in range(begin, end)]
            rows, columns = np.array(places).T
            told = {"ids": ids[rows, columns], "sequences": rows, "positions": columns}
            tensors = [ReadTensor(Role.OUTPUT, *one) for one in told.items()]
            calls.append(ReadCall(0, "", TOKENS, tensors, kind=CallKind.DATA, phase=Phase.DATA))
            hidden, ends = TABLE[ids[rows, columns]], [end - begin for _, begin, end in parts]
            scores = hidden[np.cumsum(ends) - 1] + np.float32(off)
            tensors = [
                ReadTensor(Role.INPUT, "args.0", hidden),
                ReadTensor(Role.OUTPUT, "result", scores),
            ]
            calls.append(ReadCall(0, "", "Model", tensors, kind=CallKind.MODULE))
        return made(path, calls)

    trainer = made(tmp_path / "trainer", _calls(ids, TABLE[ids]))
    found = compare_recordings(trainer, served(tmp_path / "engine", 0.0))
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    off = compare_recordings(trainer, served(tmp_path / "off", 0.01))
    assert (off.verdict, off.origins[0].op) == (Verdict.DIVERGED, "Model")
