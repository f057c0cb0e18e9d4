"""What a page shows of a comparison is what `compare` says, in execution order."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Evidence, Kind, Outcome, Verdict
from lockstep.core.reason import Reason
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.kinds import (
    EQUAL,
    IN_TOLERANCE,
    INHERITED,
    KINDS,
    NO_PARTNER,
    ORIGIN,
    SET_UP,
    kind_of,
)
from lockstep.report.comparison.screen import headline
from lockstep.report.page import Grid, render
from lockstep.report.page.areas import words_alone
from lockstep.store.reader import open_recording
from lockstep.testing.fixtures import FaultyPair
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import MadeTraining
from lockstep.wings.report.comparison_data import gather
from lockstep.wings.report.comparison_page import comparison_page
from lockstep.wings.report.comparison_types import (
    ComparisonData,
    TextColumn,
)
from lockstep.wings.report.pair_blocks import blocks_of
from lockstep.wings.report.pair_columns import chosen_pairs, in_execution_order
from lockstep.wings.report.source_excerpts import excerpts
from lockstep.wings.report.verdict_area import verdict_of


@pytest.fixture(scope="module")
def found(lockstep_faulty_pair: FaultyPair) -> Comparison:
    return compare_recordings(lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate)


@pytest.fixture(scope="module")
def data(found: Comparison) -> ComparisonData:
    return gather(found, open_recording(found.reference), open_recording(found.candidate))


def kinds(data: ComparisonData) -> Counter[str]:
    return Counter(data.pairs.kind[row] for row in range(len(data.pairs)))


def test_where_nothing_rounds_the_page_counts_no_noise_floors(data: ComparisonData) -> None:
    # Given an origin whose tolerance is of subnormal numbers alone, and a twin that rounds
    told = verdict_of(data)
    assert told.ruler is not None
    assert "noise floor" in words_alone(told.lede)
    exact = replace(
        data, answer=data.answer | {"origin": data.answer["origin"] | {"rounds": False}}
    )
    # Then neither a ruler nor a number of times is shown.
    assert verdict_of(exact).ruler is None
    assert "noise floor" not in words_alone(verdict_of(exact).lede)


def test_it_says_what_compare_says(found: Comparison, data: ComparisonData) -> None:
    # given a candidate with one wrong operator
    # then the words are the terminal's and the JSON's
    assert data.answer == comparison_json(found)
    assert headline(found) == f"DIVERGED {data.headline}"
    assert data.reasons[0].startswith("fault: ")
    assert found.what_next is not None
    assert data.advice[0].command == found.what_next.command
    # and the counts of the kinds are those of the answer
    assert kinds(data)[EQUAL] == data.answer["equal"]
    assert kinds(data)[ORIGIN] == len(data.answer["origins"]) == len(data.origins)
    assert set(kinds(data)) <= {one.name for one in KINDS}


def test_the_first_origin_stands_where_its_answer_says(data: ComparisonData) -> None:
    row, origin, pairs = data.origins[0], data.answer["origin"], data.pairs
    assert (pairs.step[row], pairs.phase[row], pairs.module[row], pairs.operator[row]) == (
        origin["step"], origin["phase"], origin["module"], origin["op"],
    )  # fmt: skip
    assert pairs.floor[row] == origin["floor"]
    assert pairs.margin[row] == pairs.difference[row] / pairs.floor[row] > 1


def test_nothing_is_off_before_the_origin_and_all_of_it_after(data: ComparisonData) -> None:
    # given pairs in execution order
    before = [data.pairs.kind[row] for row in range(data.origins[0])]
    # then what inherits the fault stands behind it
    assert INHERITED not in before
    assert kinds(data)[INHERITED] > 3
    assert (np.diff(data.pairs.step) >= 0).all()


def test_what_is_inherited_is_measured_by_its_own_floor(data: ComparisonData) -> None:
    # given a fault of a thousandth, which later tolerances are as wide as
    rows = [row for row in range(len(data.pairs)) if data.pairs.kind[row] == INHERITED]
    floating = [row for row in rows if data.pairs.floor[row] > 0]
    # then in units of its own floor each is as far off as the fault has taken it
    assert len(floating) == len(rows)
    assert all(data.pairs.floor[row] <= data.pairs.tolerance[row] for row in floating)
    assert all(data.pairs.margin[row] > 1 for row in floating)


def test_an_input_leads_to_the_pair_that_made_it(data: ComparisonData) -> None:
    pairs = data.pairs
    linked = [row for row in range(len(pairs)) if pairs.producer[row] >= 0]
    # given the origin's output, then what takes it says so
    takers = [row for row in linked if pairs.producer[row] == data.origins[0]]
    assert takers
    assert all(pairs.producer[row] < row for row in linked)
    assert {pairs.role[row] for row in takers} <= {"input", "loss"}
    # and a link is between equal tensors
    for row in linked:
        made = pairs.producer[row]
        assert pairs.reference_norm[made] == pairs.reference_norm[row]
        assert pairs.shape[made] == pairs.shape[row]


def test_two_equal_runs_have_nothing_but_equal_pairs(lockstep_whole_recording: Path) -> None:
    one = open_recording(lockstep_whole_recording)
    found = compare_recordings(one, one)
    data = gather(found, one, one)
    assert found.verdict is Verdict.AGREE
    assert set(kinds(data)) == {EQUAL}
    assert (data.origins, data.reasons) == ((), ())
    assert headline(found) == f"AGREE: {data.headline}"
    assert (data.pairs.margin == 0).all()


def test_of_too_many_pairs_equal_ones_are_left_out_and_counted(found: Comparison) -> None:
    # given more pairs than may be shown
    reference, candidate = open_recording(found.reference), open_recording(found.candidate)
    whole = gather(found, reference, candidate)
    some = gather(found, reference, candidate, largest_pairs=len(whole.pairs) - 3)
    # then equal ones are not there, and every other one is
    assert some.left_out == 3
    assert kinds(some) == kinds(whole) - Counter({EQUAL: 3})
    none = gather(found, reference, candidate, largest_pairs=0)
    assert kinds(none)[EQUAL] == 0
    assert kinds(none) + Counter({EQUAL: none.left_out}) == kinds(whole)
    assert none.pairs.kind[none.origins[0]] == ORIGIN


def test_two_runs_that_share_nothing_have_a_headline_and_no_pairs(
    tmp_path: Path, lockstep_recording: Path
) -> None:
    # given an empty recording of no rank
    shutil.rmtree(write_recording(tmp_path / "empty", MadeTraining()) / "rank0")
    empty = open_recording(tmp_path / "empty")
    other = open_recording(lockstep_recording)
    found = compare_recordings(other, empty)
    # then there is a page all the same
    data = gather(found, other, empty)
    assert (len(data.pairs), data.origins, data.left_out) == (0, (), 0)
    assert data.headline
    assert data.runs[1].steps == ()
    assert data.coverage


def test_ranks_follow_each_other_within_a_step(lockstep_two_ranks: Path) -> None:
    one = open_recording(lockstep_two_ranks)
    data = gather(compare_recordings(one, one), one, one)
    met = [(int(data.pairs.step[row]), data.pairs.rank[row]) for row in range(len(data.pairs))]
    assert list(dict.fromkeys(met)) == [(0, "rank0"), (0, "rank1"), (1, "rank0"), (1, "rank1")]


def test_what_the_candidate_alone_has_stands_where_the_candidate_came_to_it(
    found: Comparison,
) -> None:
    # given a pair whose reference has no partner for it, after the tenth pair
    some = in_execution_order(found.findings)[:20]
    tenth = some[10].pair
    assert tenth.candidate is not None
    lone = replace(
        some[10],
        pair=replace(tenth, reference=None),
        outcome=Outcome.MISSING,
    )
    # when all are put in order, from whatever order
    ordered = in_execution_order([lone, *reversed(some)])
    # then it stands behind the tenth, and is without partner
    assert ordered.index(lone) == 11
    assert kind_of(lone, None, found) == NO_PARTNER
    assert [one for one in ordered if one is not lone] == some


def test_a_cause_that_no_pair_is_of_has_a_row_of_its_own(found: Comparison) -> None:
    # given an origin whose finding is none of the findings
    origin = found.origins[0]
    at = origin.finding.pair.reference
    assert at is not None
    other = replace(
        origin.finding, pair=replace(origin.finding.pair, reference=replace(at, index=7))
    )
    made = replace(found, origins=(replace(origin, finding=other, kind=Kind.SETUP), origin))
    # then it is a row, and both origins are where they are said to be
    chosen = chosen_pairs(made, 10**6)
    assert len(chosen.findings) == len(found.findings) + 1
    rows = chosen.rows_of(made.origins)
    assert [chosen.findings[row] for row in rows] == [other, origin.finding]


def test_an_equal_tensor_that_is_an_origin_is_accounted_for(
    found: Comparison, data: ComparisonData
) -> None:
    # given a cause in the set-up that is told of a pair whose two tensors are equal
    equal = next(one for one in found.findings if one.metrics.evidence is Evidence.DIGEST)
    origin = replace(found.origins[0], finding=equal, kind=Kind.SETUP)
    made = replace(found, origins=(origin, *found.origins))
    shown = gather(made, open_recording(found.reference), open_recording(found.candidate))
    # then the page lists one less as equal than the answer counts, and says by what it is listed
    assert kinds(shown)[EQUAL] == shown.answer["equal"] - 1
    words = f"of those equal, 1 listed as: {SET_UP}"
    assert words in render(comparison_page(shown))
    # and without such an origin nothing is to be said
    assert "of those equal" not in render(comparison_page(data))


def test_a_tensor_of_one_run_alone_differs_in_nothing(
    found: Comparison, data: ComparisonData
) -> None:
    # given the numbers of the origin, of which one side is not there
    detail = data.details[data.origins[0]]
    alone = next(iter(blocks_of(replace(detail, reference=None), data)))
    both = next(iter(blocks_of(detail, data)))
    # then nothing stands out, and no row is of what neither has
    assert isinstance(alone, Grid)
    assert isinstance(both, Grid)
    assert not alone.standing_out
    assert both.standing_out
    assert "differs" not in str(alone.rows)
    assert {row[0] for row in alone.rows} == {row[0] for row in both.rows}


@pytest.mark.parametrize("evidence", ["digest", "tensors", "sketch", "statistics", "none"])
def test_how_sure_is_said_where_numbers_are_not_of_whole_tensors(
    data: ComparisonData, evidence: str
) -> None:
    origin = {**data.answer["origin"], "evidence": evidence}
    facts = dict(verdict_of(replace(data, answer={**data.answer, "origin": origin})).facts)
    assert ("How sure" in facts) == (evidence in ("sketch", "statistics"))


def test_the_first_screen_names_what_would_be_misread(data: ComparisonData) -> None:
    # given an origin in a module that has only a number, seen at the input of the next one
    origin = {**data.answer["origin"], "module": "1", "op": "torch.where"}
    shown = verdict_of(replace(data, answer={**data.answer, "origin": origin}))
    # then the sentence says that it is a module, and a fact where the tensor stands that was compared
    assert words_alone(shown.sentence).endswith("of module 1.")
    row = data.origins[0]
    where = f"{data.pairs.module[row]} / {data.pairs.operator[row]}"
    assert words_alone(dict(shown.facts)["Measured at"]).startswith(where)
    # and where both are one, nothing
    assert "Measured at" not in dict(verdict_of(data).facts)


def test_what_follows_is_counted_as_in_the_table_and_in_the_terminal(data: ComparisonData) -> None:
    # given pairs that inherit a fault
    said = words_alone(verdict_of(data).lede)
    words = f"{kinds(data)[INHERITED]} later differences at {data.answer['inherited']} sites follow from it."
    assert said.endswith(words)
    # and none
    alone = replace(data.pairs, kind=TextColumn.of([EQUAL] * len(data.pairs)))
    said = words_alone(verdict_of(replace(data, pairs=alone)).lede)
    assert said.endswith("Nothing else differs.")


def test_a_page_says_that_runs_agree_in_its_heading(
    lockstep_whole_recording: Path, tmp_path: Path
) -> None:
    # given the same training twice
    again = write_recording(tmp_path / "again", MadeTraining(steps=2, whole=True))
    same = compare_recordings(lockstep_whole_recording, again)
    found = gather(same, open_recording(same.reference), open_recording(again))
    shown = verdict_of(found)
    assert words_alone(shown.sentence).startswith("The runs agree: ")
    # then nothing on the page looks for where they part
    assert "Where the runs part" not in render(comparison_page(found))


def test_set_up_is_not_called_alike_beside_an_origin_in_it(
    found: Comparison, data: ComparisonData
) -> None:
    origin = replace(found.origins[0], kind=Kind.SETUP, reason=Reason("lr is 0.1 and 0.2"))
    made = replace(found, origins=(origin,), setup=())
    shown = gather(made, open_recording(found.reference), open_recording(found.candidate))
    alike = "Both were set up alike"
    assert alike not in render(comparison_page(shown))
    assert "lr is 0.1 and 0.2</span></li>" in render(comparison_page(shown))
    assert alike in render(comparison_page(data))


def test_what_is_equal_in_value_alone_is_counted(data: ComparisonData) -> None:
    # given pairs of another dtype without a difference
    kinds_of = TextColumn.of([IN_TOLERANCE] * 3 + [EQUAL] * (len(data.pairs) - 3))
    pairs = replace(data.pairs, kind=kinds_of, difference=np.zeros(len(data.pairs)))
    words = "3 equal in value, though not bit by bit"
    assert words in render(comparison_page(replace(data, pairs=pairs)))
    assert "equal in value" not in render(comparison_page(data))


def test_names_keep_their_letters_at_the_beginning_of_a_sentence(data: ComparisonData) -> None:
    answer = {**data.answer, "origin": None, "verdict": "incomparable"}
    shown = verdict_of(
        replace(
            data,
            answer=answer,
            origins=(),
            headline="ref: no step",
            reasons=("a.b is off", "so it is"),
        )
    )
    assert shown.lede == "ref: no step"
    assert [words for _, words in shown.facts] == ["a.b is off", "So it is"]


def test_a_column_keeps_each_text_once() -> None:
    column = TextColumn.of(["b", "a", "b", "b"])
    assert (column.names, column.codes.tolist()) == (("b", "a"), [0, 1, 0, 0])
    assert [column[row] for row in range(len(column))] == ["b", "a", "b", "b"]


def test_a_made_training_without_a_fault_leads_nowhere_wrong(tmp_path: Path) -> None:
    # given a candidate whose sums round otherwise
    def rounded(value: np.ndarray) -> np.ndarray:
        return (value * np.float32(1 + 2**-23)).astype(np.float32)

    paths = [
        write_recording(tmp_path / name, MadeTraining(whole=True, alter=alter))
        for name, alter in (("reference", {}), ("candidate", {"relu": rounded}))
    ]
    one, other = map(open_recording, paths)
    data = gather(compare_recordings(one, other), one, other)
    # then nothing is an origin, and no margin is beyond the floor
    assert data.origins == ()
    assert not {ORIGIN, INHERITED} & set(kinds(data))
    assert np.nanmax(data.pairs.margin) <= 1


def test_lines_are_shown_as_they_were_kept(lockstep_trained_recording: Path) -> None:
    # given a recording of a real script
    one = open_recording(lockstep_trained_recording)
    data = gather(compare_recordings(one, one), one, one)
    # then the line of each pair has its text, with those around
    place = next(name for name in data.pairs.source.names if "train.py" in name)
    excerpt = data.sources[place]
    line = int(place.rpartition(":")[2])
    script = lockstep_trained_recording.with_name("train.py").read_text().splitlines()
    assert excerpt.first <= line < excerpt.first + len(excerpt.lines) <= line + 4
    assert list(excerpt.lines) == script[excerpt.first - 1 : excerpt.first - 1 + len(excerpt.lines)]


def test_of_a_line_that_was_not_kept_there_is_no_excerpt(data: ComparisonData) -> None:
    assert data.sources == {}


def test_places_that_are_none_have_no_excerpt(lockstep_trained_recording: Path) -> None:
    one = open_recording(lockstep_trained_recording)
    file = next(iter(one.ranks["rank0"].source_lines))
    odd = ["", ":", "a.py", f"{file}:", f"{file}:-4", f"{file}:99999", f"{file}:\u0663", "x:1:2"]
    assert excerpts(odd, [one]) == {}
