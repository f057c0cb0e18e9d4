"""Which call corresponds to which: near-linear, and one call more shifts nothing."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.align.alignment import align_calls
from lockstep.align.names import NameMap
from lockstep.align.paired_records import pair_records
from lockstep.align.sequences import align_sequences
from lockstep.core.finding import CallPair
from lockstep.core.records import Call, Content, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site


def longest_common_length(left: Sequence[object], right: Sequence[object]) -> int:
    row = [0] * (len(right) + 1)
    for one in left:
        before = list(row)
        for j, other in enumerate(right, 1):
            row[j] = before[j - 1] + 1 if one == other else max(before[j], row[j - 1])
    return row[-1]


tokens = st.lists(st.sampled_from("abcde"), max_size=12)


@given(tokens, tokens)
def test_matches_are_equal_tokens_in_order(left: list[str], right: list[str]) -> None:
    matches = align_sequences(left, right)
    assert all(left[i] == right[j] for i, j in matches)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(matches))
    assert len(matches) <= longest_common_length(left, right)


@given(st.lists(st.integers(0, 3), max_size=30), st.data())
def test_one_call_more_costs_no_match(sequence: list[int], data: st.DataObject) -> None:
    # Given a sequence and the same with one token put in anywhere
    at = data.draw(st.integers(0, len(sequence)))
    longer = [*sequence[:at], data.draw(st.integers(0, 3)), *sequence[at:]]
    # Then everything else keeps a partner
    assert len(align_sequences(sequence, longer)) == len(sequence)


@given(tokens, tokens)
def test_exchanged_sequences_have_the_same_matches(left: list[str], right: list[str]) -> None:
    assert align_sequences(left, right) == sorted((i, j) for j, i in align_sequences(right, left))


def test_ten_thousand_calls_with_a_gap_in_the_middle_are_aligned_without_a_large_table() -> None:
    block = [f"op{number % 97}" for number in range(5000)]
    matches = align_sequences([*block, *block], [*block, "extra", *block])
    assert len(matches) == 10_000


def call(
    number: int,
    op: str = "torch.add",
    *,
    kind: CallKind = CallKind.OPERATOR,
    module: str = "net",
    parent: int = -1,
    outputs: Sequence[tuple[tuple[int, ...], str]] = (((4, 8), ""),),
    names: Sequence[str] = (),
    arguments: dict[str, Any] | None = None,
    recomputed: bool = False,
) -> Call:
    """A call with outputs given as (shape, what is in it)."""
    site = Site(module, op, 0, Phase.FORWARD)
    records = []
    for index, (shape, text) in enumerate(outputs):
        digest = hashlib.sha256((text or f"{number} {id(outputs)}").encode()).hexdigest()
        content = Content(number * 10 + index, "float32", shape, "cpu", digest, None)
        name = names[index] if names else "result"
        role = Role.PARAM_GRAD if kind is CallKind.GRADIENT else Role.OUTPUT
        records.append(TensorRecord("rank0", 0, site, role, index, name, number, 0, content))
    return Call(
        number,
        "rank0",
        0,
        kind,
        site,
        "",
        parent,
        number,
        (),
        arguments or {},
        recomputed,
        tuple(records),
    )


def partners(pairs: Sequence[CallPair]) -> dict[int, int | None]:
    return {
        pair.reference.id: pair.candidate.id if pair.candidate else None
        for pair in pairs
        if pair.reference
    }


def test_every_call_is_in_exactly_one_pair_in_order_of_time() -> None:
    left = [call(1, "torch.a"), call(2, "torch.b"), call(3, "torch.c")]
    right = [call(1, "torch.a"), call(2, "torch.x"), call(3, "torch.y"), call(4, "torch.c")]
    pairs = align_calls(left, right)
    assert [
        (
            pair.reference.id if pair.reference else None,
            pair.candidate.id if pair.candidate else None,
        )
        for pair in pairs
    ] == [(1, 1), (None, 2), (None, 3), (2, None), (3, 4)]


def test_operators_are_looked_for_inside_the_partner_of_their_module_call() -> None:
    # Given a shared module called twice, with one operator more in one of its first calls
    module = CallKind.MODULE
    left = [
        call(1, "M", kind=module),
        call(2, parent=1),
        call(3, "M", kind=module),
        call(4, parent=3),
    ]
    right = [
        call(1, "M", kind=module),
        call(2, parent=1),
        call(3, parent=1),
        call(4, "M", kind=module),
        call(5, parent=4),
    ]
    # Then the operator of the second call finds that of the second call
    assert partners(align_calls(left, right)) == {1: 1, 2: 2, 3: 4, 4: 5}


def test_module_calls_are_aligned_by_path_whatever_their_class() -> None:
    left = [call(1, "torch.nn.LSTM", kind=CallKind.MODULE, module="encoder.lstm")]
    right = [call(7, "faults.WrongLSTM", kind=CallKind.MODULE, module="encoder.lstm")]
    assert partners(align_calls(left, right)) == {1: 7}


def test_the_same_place_is_the_same_call_however_it_is_spelled() -> None:
    left = [call(1), call(2, "torch.relu"), call(3, "torch.mul")]
    right = [call(1), call(2, "torch.nn.functional.relu"), call(3, "torch.mul")]
    pairs = align_calls(left, right)
    assert partners(pairs) == {1: 1, 2: 2, 3: 3}
    assert [pair.method for pair in pairs if pair.present.id == 2] == ["same place"]


def test_another_operator_of_another_shape_in_the_same_place_is_another_call() -> None:
    left = [call(1), call(2, "torch.relu"), call(3, "torch.mul")]
    right = [call(1), call(2, "torch.cat", outputs=[((9, 9), "")]), call(3, "torch.mul")]
    assert partners(align_calls(left, right)) == {1: 1, 2: None, 3: 3}


def test_equal_contents_tell_which_of_several_calls_is_the_extra_one() -> None:
    # Given three equal-looking calls against two, of which the last two hold equal tensors
    shape = (4, 8)
    left = [call(1, outputs=[(shape, "b")]), call(2, outputs=[(shape, "c")])]
    right = [
        call(1, outputs=[(shape, "a")]),
        call(2, outputs=[(shape, "b")]),
        call(3, outputs=[(shape, "c")]),
    ]
    assert partners(align_calls(left, right)) == {1: 2, 2: 3}


def test_contents_equal_by_chance_pull_nothing_together() -> None:
    # Given as many equal-looking calls on both sides, whose contents are equal crosswise
    left = [call(1, outputs=[((4, 8), "a")]), call(2, outputs=[((4, 8), "b")])]
    right = [call(1, outputs=[((4, 8), "b")]), call(2, outputs=[((4, 8), "x")])]
    assert partners(align_calls(left, right)) == {1: 1, 2: 2}


def test_a_batch_is_found_by_content_and_shape_where_another_tensor_comes_before_it() -> None:
    # Given a batch of features and labels, and in the other run a running total that is data as well
    data = CallKind.DATA
    left = [call(1, kind=data, outputs=[((4, 8), "x")]), call(2, kind=data, outputs=[((4,), "y")])]
    right = [
        call(1, kind=data, outputs=[((), "total")], names=["add"]),
        call(2, kind=data, outputs=[((4, 8), "x")], names=["to"]),
        call(3, kind=data, outputs=[((4,), "y")], names=["to"]),
    ]
    assert partners(align_calls(left, right)) == {1: 2, 2: 3}


def test_a_batch_that_the_other_run_puts_together_itself_is_not_held_against_its_rows() -> None:
    # Given a batch that arrives as it is, and in the other run rows of it that are stacked while the step is open
    data, batch, row = CallKind.DATA, ((4, 8), "batch"), ((8,), "row")
    left = [call(1, kind=data, outputs=[batch])]
    right = [call(1, kind=data, outputs=[row]), call(2, "torch.stack", outputs=[batch])]
    assert partners(align_calls(left, right)) == {1: None}
    # But another batch of the same name, which nothing made, is
    other = call(1, kind=data, outputs=[((4, 8), "another")])
    assert partners(align_calls(left, [other])) == {1: 1}


def test_a_batch_of_the_same_name_and_shape_is_one_whatever_else_is_equal_to_it() -> None:
    # Given labels that are shifted already, as the other run's model makes them of its own
    data = CallKind.DATA
    left = [
        call(1, kind=data, outputs=[((4, 8), "labels")]),
        call(2, "pad", outputs=[((4, 8), "shifted")]),
    ]
    right = [call(1, kind=data, outputs=[((4, 8), "shifted")])]
    assert partners(align_calls(left, right))[1] == 1


def test_half_of_a_product_is_another_product() -> None:
    # Given one product over eight terms, and two over four that are added up
    def linear(number: int, terms: int, text: str) -> Call:
        made = call(number, "torch.nn.functional.linear", outputs=[((2, 3), text)])
        (result,) = made.records
        given = replace(result.content, id=number * 10 + 5, shape=(2, terms))
        return replace(made, records=(replace(result, role=Role.INPUT, content=given), result))

    left = [linear(1, 8, "whole")]
    right = [
        linear(1, 4, "first"),
        linear(2, 4, "second"),
        call(3, "torch.add", outputs=[((2, 3), "sum")]),
    ]
    assert partners(align_calls(left, right)) == {1: None}
    assert partners(align_calls(left, [linear(1, 8, "other")])) == {1: 1}


def test_numbers_that_two_loops_hand_over_to_other_calls_are_not_held_against_each_other() -> None:
    data = CallKind.DATA
    left = [call(1, kind=data, outputs=[((), "total")], names=["x of add_"])]
    right = [call(1, kind=data, outputs=[((), "count")], names=["x of to"])]
    assert partners(align_calls(left, right)) == {1: None}
    assert partners(
        align_calls(left, [call(1, kind=data, outputs=[((), "y")], names=["x of add_"])])
    ) == {1: 1}


def test_a_call_outside_of_the_model_is_none_inside_of_a_module_that_the_other_run_lacks() -> None:
    # Given a division in a model's own forward, and in the other run one of the loss, after the model
    inside, outside = [((4, 8), "scores")], [((), "loss")]
    module = CallKind.MODULE
    left = [call(1, "M", kind=module, module=""), call(2, module="", parent=1, outputs=inside)]
    right = [call(1, "N", kind=module, module="model"), call(2, module="", outputs=outside)]
    assert partners(align_calls(left, right)) == {1: None, 2: None}


def test_gradients_are_aligned_by_parameter_in_whatever_order_they_come() -> None:
    def gradient(number: int, name: str) -> Call:
        return call(number, "accumulate_grad", kind=CallKind.GRADIENT, names=[name])

    left = [gradient(1, "a"), gradient(2, "b"), gradient(3, "a"), gradient(4, "b")]
    right = [gradient(1, "b"), gradient(2, "a"), gradient(3, "b"), gradient(4, "a")]
    assert partners(align_calls(left, right)) == {1: 2, 2: 1, 3: 4, 4: 3}


def test_recomputed_calls_find_recomputed_calls() -> None:
    left = [call(1), call(2, recomputed=True)]
    right = [call(1, recomputed=True), call(2)]
    assert partners(align_calls(left, right)) == {1: 2, 2: 1}


@pytest.mark.parametrize("lone", ["reference", "candidate"])
def test_records_of_a_lone_call_stand_alone(lone: str) -> None:
    one = call(1)
    pair = CallPair(one, None, "none") if lone == "reference" else CallPair(None, one, "none")
    paired = pair_records(pair)
    assert [getattr(item, lone) is one.records[0] for item in paired] == [True]


def test_records_are_paired_by_name_where_there_are_names_and_by_index_else() -> None:
    left = call(1, outputs=[((2,), "a"), ((3,), "b")], names=["result.x", "result.y"])
    right = call(
        1, outputs=[((2,), "c"), ((3,), "d"), ((4,), "e")], names=["result.x", "other", "z"]
    )
    paired = pair_records(CallPair(left, right, "order"))
    assert [
        (item.reference and item.reference.name, item.candidate and item.candidate.name)
        for item in paired
    ] == [("result.x", "result.x"), ("result.y", "other"), (None, "z")]


def test_a_renamed_module_is_found_under_its_name_in_the_other_run() -> None:
    # Given the same calls below another path
    module = CallKind.MODULE
    left = [call(1, "M", kind=module, module="blocks.0"), call(2, module="blocks.0", parent=1)]
    right = [call(5, "M", kind=module, module="layers.0"), call(6, module="layers.0", parent=5)]
    assert partners(align_calls(left, right)) == {1: None, 2: None}
    # When the other run's names are known
    names = NameMap(
        modules={"layers": "blocks"}, found_by={"layers": "renamed module blocks -> layers"}
    )
    pairs = align_calls(left, right, names)
    # Then they correspond, under their own names, and it is said how that was found
    assert partners(pairs) == {1: 5, 2: 6}
    assert pairs[0].candidate is right[0]
    assert pairs[0].method == "renamed module blocks -> layers"


def test_renamed_parameters_are_paired_by_their_name_in_the_other_run() -> None:
    left = call(1, kind=CallKind.GRADIENT, module="a", names=["a.gain"])
    right = call(2, kind=CallKind.GRADIENT, module="a", names=["a.weight"])
    names = NameMap(tensors={"a.weight": "a.gain"})
    assert partners(align_calls([left], [right])) == {1: None}
    assert partners(align_calls([left], [right], names)) == {1: 2}
    (pair,) = pair_records(CallPair(left, right, "parameter name"), names)
    assert pair.candidate is right.records[0]
    assert pair.method == "parameter name"


def test_of_calls_that_only_return_the_same_just_the_results_are_paired() -> None:
    site = Site("net", "torch.add", 0, Phase.FORWARD)

    def with_roles(number: int) -> Call:
        one = call(number)
        content = one.records[0].content
        roles = (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT)
        records = tuple(
            TensorRecord("rank0", 0, site, role, 0, "args.0", number, 0, content) for role in roles
        )
        return replace(one, records=records)

    pairs = pair_records(CallPair(with_roles(1), with_roles(2), "content", only_results=True))
    assert [(pair.reference is None, pair.candidate is None) for pair in pairs] == [
        (False, True),
        (False, False),
        (False, False),
        (False, True),
        (True, False),
        (True, False),
    ]
