"""Ranks that are equal by the digests of their files are not opened, and the answer stays that of opening them all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lockstep import comparison
from lockstep.align.ranks import pair_ranks
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError
from lockstep.core.finding import Comparison, Finding, Verdict
from lockstep.core.rank_findings import EqualRank, RankFindings
from lockstep.reading.equal_ranks import stand_ins
from lockstep.report.comparison.json import render_json
from lockstep.report.comparison.screen import render_comparison
from lockstep.store.integrity import with_digest
from lockstep.store.reader import Recording, open_recording
from lockstep.store.tables import Index
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import Array, MadeTraining

RANKS = 17
"""More than those that the laws run together."""


def off(value: Array) -> Array:
    return value * np.float32(1.001)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of seventeen ranks, each with a batch of its own: two equal ones, and one with a fault on rank 7."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [MadeTraining(steps=2, seed=seed) for seed in range(RANKS)]
    faulty = [*ranks]
    faulty[7] = MadeTraining(steps=2, seed=7, alter={"relu": off})
    for name, each in (("reference", ranks), ("equal", ranks), ("fault", faulty)):
        write_recording(folder / name, *each)
    return folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The directories of ranks whose tables were opened."""
    found: set[str] = set()
    begin = Index.__init__

    def noting(self: Index, chunks: object, progress: object = None) -> None:
        found.add(f"{chunks.directory.parent.name}/{chunks.directory.name}")  # type: ignore[attr-defined]
        begin(self, chunks, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "__init__", noting)
    return found


def everything_opened(reference: Path, candidate: Path) -> Comparison:
    """The comparison of an earlier build, which opens each rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "equal_by_files", lambda *_: {})
        return compare_recordings(reference, candidate)


def said(found: Comparison) -> str:
    """All that is said of a comparison, as text and as JSON, and each pair of tensors."""
    return "\n".join(
        [
            render_comparison(found).plain,
            render_json(found),
            *map(repr, map(without_loaders, found.findings)),
        ]
    )


def without_loaders(finding: Finding) -> object:
    """A finding without what reads its tensors, which no two openings share."""
    sides = (finding.pair.reference, finding.pair.candidate)
    told = [
        None
        if one is None
        else (
            one.rank,
            one.step,
            one.site,
            one.role,
            one.name,
            one.content.digest,
            one.content.statistics,
        )
        for one in sides
    ]
    return told, finding.outcome, finding.metrics, finding.tolerance, finding.reason


def change_manifest(recording: Path, rank: str, **values: object) -> None:
    path = recording / rank / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("digest", None)
    path.write_text(with_digest(json.dumps(manifest | values, indent=1)))


def copied(folder: Path, name: str, there: Path) -> Path:
    return Path(shutil.copytree(folder / name, there / name))


def test_of_equal_ranks_one_is_opened(folder: Path, opened: set[str]) -> None:
    found = compare_recordings(folder / "reference", folder / "equal")
    text = render_json(found)

    assert found.verdict is Verdict.AGREE, text
    assert opened == {"reference/rank0", "equal/rank0"}
    assert found.compared == len(found.findings)
    assert f"{found.compared} tensors compared, all equal bit by bit" in text


@pytest.mark.parametrize("candidate", ["equal", "fault"])
def test_the_answer_is_that_of_opening_all(folder: Path, candidate: str) -> None:
    found = compare_recordings(folder / "reference", folder / candidate)
    expected = everything_opened(folder / "reference", folder / candidate)

    assert isinstance(found.findings, RankFindings)
    assert said(found) == said(expected)


def test_one_faulty_rank_is_opened_beside_the_first(folder: Path, opened: set[str]) -> None:
    found = compare_recordings(folder / "reference", folder / "fault")

    assert {origin.rank for origin in found.origins} == {"rank7"}
    ranks = {one.partition("/")[2] for one in opened}
    assert ranks == {"rank0", "rank7"}


def test_a_file_that_was_changed_after_it_was_written_is_found(
    folder: Path, tmp_path: Path
) -> None:
    candidate = copied(folder, "equal", tmp_path)
    table = candidate / "rank13" / "contents-00000.parquet"
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)

    with pytest.raises(CorruptError, match=r"rank13.*was changed after it was written"):
        compare_recordings(folder / "reference", candidate)


def test_a_listing_alone_proves_nothing(folder: Path, tmp_path: Path) -> None:
    """Given a rank that lists the files of the reference and holds those of the fault, nothing agrees."""
    candidate = copied(folder, "fault", tmp_path)
    listed = json.loads((folder / "reference" / "rank7" / "manifest.json").read_text())["files"]
    own = json.loads((candidate / "rank7" / "manifest.json").read_text())["files"]
    assert listed != own
    change_manifest(candidate, "rank7", files=listed)

    with pytest.raises(CorruptError, match="rank7"):
        compare_recordings(folder / "reference", candidate)


def test_a_file_that_no_manifest_lists_is_looked_at(folder: Path, tmp_path: Path) -> None:
    candidate = copied(folder, "equal", tmp_path)
    (candidate / "rank5" / "records-00009.parquet").write_bytes(b"")

    sides = open_recording(folder / "reference"), open_recording(candidate)
    assert "rank5" not in stand_ins(*sides, pair_ranks(*sides))
    assert "rank6" in stand_ins(*sides, pair_ranks(*sides))


@pytest.mark.parametrize(
    "values",
    [
        {"packages": {"torch": "2.99"}},
        {"environment": {"NCCL_ALGO": "Ring"}},
    ],
)
def test_a_set_up_that_differs_on_an_equal_rank_is_said(
    folder: Path, tmp_path: Path, values: dict[str, object]
) -> None:
    candidate = copied(folder, "equal", tmp_path)
    change_manifest(candidate, "rank11", **values)

    found = compare_recordings(folder / "reference", candidate)

    assert found.setup
    assert said(found) == said(everything_opened(folder / "reference", candidate))


@pytest.mark.parametrize(
    "values",
    [
        {"state": "recording"},
        {"trained": 7},
        {"not_seen": [{"what": "the end of the training", "reason": "it was cut"}]},
    ],
)
def test_a_rank_with_an_end_of_its_own_is_opened(
    folder: Path, tmp_path: Path, values: dict[str, object], opened: set[str]
) -> None:
    candidate = copied(folder, "equal", tmp_path)
    change_manifest(candidate, "rank11", **values)

    found = compare_recordings(folder / "reference", candidate)

    assert "equal/rank11" in opened
    assert said(found) == said(everything_opened(folder / "reference", candidate))


def test_ranks_of_a_layout_of_their_own_are_opened(tmp_path: Path, opened: set[str]) -> None:
    """Given ranks of which one trains more steps, one of either layout is opened."""
    ranks = [MadeTraining(steps=2, seed=seed) for seed in range(RANKS)]
    ranks[9] = MadeTraining(steps=3, seed=9)
    sides = [write_recording(tmp_path / name, *ranks) for name in ("reference", "equal")]

    found = compare_recordings(*sides)

    assert {one.partition("/")[2] for one in opened} == {"rank0", "rank9"}
    assert said(found) == said(everything_opened(*sides))


def test_few_ranks_are_all_opened(tmp_path: Path, opened: set[str]) -> None:
    ranks = [MadeTraining(steps=1, seed=seed) for seed in range(3)]
    sides = [write_recording(tmp_path / name, *ranks) for name in ("reference", "equal")]

    found = compare_recordings(*sides)

    assert found.verdict is Verdict.AGREE
    assert len(opened) == 6


def test_a_comparison_that_asks_for_all_ranks_opens_them(
    folder: Path, opened: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a rank that stands for others and is not plainly equal, no rank stands for another."""
    taken = comparison._take_equal_ranks
    asked = []

    def refusing(*arguments: object) -> None:
        asked.append(arguments)
        raise comparison.AllRanksNeededError

    monkeypatch.setattr(comparison, "_take_equal_ranks", refusing)
    found = compare_recordings(folder / "reference", folder / "equal")

    assert taken is not refusing
    assert len(asked) == 1
    assert isinstance(found.findings, tuple)
    assert len(opened) == 2 * RANKS


def test_a_rank_is_read_when_its_findings_are(folder: Path, opened: set[str]) -> None:
    found = compare_recordings(folder / "reference", folder / "equal")
    opened.clear()
    each = found.compared // RANKS

    assert found.findings[0].pair.present.rank == "rank0"
    assert not opened
    assert found.findings[each].pair.present.rank == "rank1"
    assert opened == {"reference/rank1", "equal/rank1"}
    assert found.findings[-1].pair.present.rank == f"rank{RANKS - 1}"
    assert [one.pair.present.rank for one in found.findings[each - 1 : each + 1]] == [
        "rank0",
        "rank1",
    ]


def test_findings_of_ranks_count_without_being_read() -> None:
    def never() -> list[Finding]:
        raise AssertionError

    findings = RankFindings([(), EqualRank("rank3", 12, never)])

    assert len(findings) == 12
    assert not list(findings.at_hand)
    assert [one.name for one in findings.equal_ranks] == ["rank3"]


def test_a_candidate_is_looked_at_anew_beside_a_second_reference(folder: Path) -> None:
    """Given one reference beside two candidates, what is known of the first pair is not taken for the second."""
    reference = open_recording(folder / "reference")

    def of(candidate: str) -> tuple[Recording, set[str]]:
        other = open_recording(folder / candidate)
        return other, set(stand_ins(reference, other, pair_ranks(reference, other)))

    equal, of_equal = of("equal")
    fault, of_fault = of("fault")

    assert of_equal - of_fault == {"rank7"}
    assert compare_recordings(reference, fault).verdict is Verdict.DIVERGED
    assert compare_recordings(reference, equal).verdict is Verdict.AGREE
