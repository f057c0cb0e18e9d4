"""Ranks that share a batch and hold parts of parameters, compared with one rank that holds them whole."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_ranks import call, made
from two_ranks import run_two_ranks

from lockstep import compare_recordings
from lockstep.core.finding import Comparison, Course, Verdict
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.site import CallKind, Phase, Role
from lockstep.unify.data_parallel import DataForms
from lockstep.unify.joined_parts import UnlikeDimsError
from lockstep.unify.tensors_of_ranks import Seen

SCRIPT = Path(__file__).with_name("shared_batch.py")
SHORT = ("gpt+hand", "gpt+hand+qkv")
SOUND = (
    "llama+hand",
    "gpt+placed",
    "llama+placed",
    "gpt+hand+sp",
    "llama+hand+sp",
    "gpt+hand+dropout",
)
FAULTS = {
    # a sum over ranks is missing, and one is taken twice
    "gpt+hand+missing": ("blocks.0.down", Phase.FORWARD),
    "llama+hand+twice": ("blocks.0.down", Phase.FORWARD),
    "llama+placed+missing": ("blocks.0", Phase.FORWARD),
    "llama+hand+unreduced-input": ("blocks.1", Phase.BACKWARD),
    # the gradient of a norm of which each rank has a part of the sequence
    "gpt+hand+sp+norm-unreduced": ("blocks.0.norm1", Phase.BACKWARD),
    # what every rank should drop alike
    "gpt+hand+dropout+own-seed": ("blocks.0", Phase.FORWARD),
    # the first rank's part on both
    "gpt+hand+shard": ("blocks.0.up", Phase.INIT),
}


def _recorded(programs: Path, folder: Path, names: list[str]) -> Path:
    twins = sorted({_twin(name) for name in names})
    alone = [str(programs / "python"), str(SCRIPT), str(folder / "one"), *twins]
    subprocess.run(alone, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    run_two_ranks(programs, SCRIPT, str(folder / "many"), *names)
    return folder


def _twin(name: str) -> str:
    model, how, *words = name.split("+")
    return "+".join((model, how, *(["dropout"] if "dropout" in words else [])))


def _compared(folder: Path, name: str) -> Comparison:
    return compare_recordings(folder / "one" / _twin(name), folder / "many" / name, rerun=False)


def _agrees(found: Comparison) -> None:
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    assert found.unaligned_reference == 0
    assert any(finding.difference > 0 for finding in found.findings)
    roles = {finding.pair.present.role for finding in found.findings}
    assert {Role.OUTPUT, Role.LOSS, Role.GRAD_OUTPUT, Role.PARAM_GRAD, Role.PARAM_AFTER} <= roles
    assert found.ends is not None
    assert found.ends.course is Course.NOISE


@pytest.fixture(scope="module")
def short(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sound training and its faulty twin."""
    return _recorded(programs, tmp_path_factory.mktemp("tensor-parallel-short"), [*SHORT])


@pytest.fixture(scope="module")
def runs(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All others, in one process of one rank and two of two."""
    return _recorded(programs, tmp_path_factory.mktemp("tensor-parallel"), [*SOUND, *FAULTS])


# --- whole trainings


def test_parts_of_queries_keys_and_values_agree_with_one_rank(short: Path) -> None:
    _agrees(_compared(short, "gpt+hand"))


def test_rows_that_are_dealt_in_the_wrong_order_are_named_where_they_are_taken_apart(
    short: Path,
) -> None:
    # given ranks that hold halves of what one rank holds as queries, keys and values, one after the other
    found = _compared(short, "gpt+hand+qkv")

    # then the weights agree, as every row is there, and the call that takes them apart is the origin
    first = found.origins[0]
    assert (first.step, first.phase, first.module) == (0, Phase.FORWARD, "blocks.0.attention")
    assert first.op.endswith("chunk")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_agrees_with_its_twin_of_one_rank(runs: Path, name: str) -> None:
    _agrees(_compared(runs, name))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAULTS)
def test_a_slip_between_ranks_is_named_where_it_shows_first(runs: Path, name: str) -> None:
    found = _compared(runs, name)
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert (first.step, first.module, first.phase) == (0, *FAULTS[name])


# --- single tensors


def _call(module: str, kind: CallKind, *tensors: ReadTensor) -> ReadCall:
    phase = {CallKind.INIT: Phase.INIT, CallKind.DATA: Phase.DATA}.get(kind, Phase.FORWARD)
    return ReadCall(0, module, "Linear", list(tensors), kind=kind, phase=phase)


BATCH = _call("", CallKind.DATA, ReadTensor(Role.OUTPUT, "batch", np.arange(6, dtype="f4")))


def _parameters(weight: np.ndarray, bias: np.ndarray) -> ReadCall:
    tensors = (
        ReadTensor(Role.PARAM, f"fc.{name}", one)
        for name, one in (("weight", weight), ("bias", bias))
    )
    return _call("fc", CallKind.INIT, *tensors)


def _gradient(bias: np.ndarray) -> ReadCall:
    return _call("fc", CallKind.GRADIENT, ReadTensor(Role.PARAM_GRAD, "fc.bias", bias))


def test_a_bias_of_zeros_lies_as_the_weight_beside_it(tmp_path: Path) -> None:
    # given rows that two ranks hold in an order that only the weight tells
    weight, zeros, gradient = (
        np.arange(12, dtype="f4").reshape(6, 2),
        np.zeros(6, "f4"),
        np.arange(6.0),
    )
    own = [[0, 2, 4], [1, 3, 5]]
    one = made(tmp_path / "one", [BATCH, _parameters(weight, zeros), _gradient(gradient)])
    ranks = [
        [BATCH, _parameters(weight[rows], zeros[rows]), _gradient(gradient[rows])] for rows in own
    ]
    # then the gradient of the bias is put together in that order
    found = compare_recordings(one, made(tmp_path / "two", *ranks))
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    # and one element that is off is seen
    ranks[1][2] = _gradient(gradient[own[1]] + 1)
    assert compare_recordings(one, made(tmp_path / "off", *ranks)).verdict is not Verdict.AGREE


def test_summands_are_added_up_and_unequal_copies_are_named(tmp_path: Path) -> None:
    whole = np.linspace(1, 2, 6, dtype="f4")
    one = made(tmp_path / "one", [BATCH, call("exp", whole)])
    summands = [[BATCH, call("exp", whole * part)] for part in (np.float32(0.25), np.float32(0.75))]
    assert compare_recordings(one, made(tmp_path / "sum", *summands)).verdict is Verdict.AGREE
    copies = [[BATCH, call("exp", whole * part)] for part in (np.float32(1), np.float32(1.1))]
    found = compare_recordings(one, made(tmp_path / "copies", *copies))
    assert found.verdict is Verdict.DIVERGED
    assert "whose copies differ" in found.origins[0].reason


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((np.ones((2, 3), "f4"), np.ones((3, 3), "f4")), "make no (4, 3) of one rank along axis 0"),
        ((np.arange(12).reshape(4, 3), np.ones((4, 3), "i8")), "nothing says how they make one"),
    ],
)
def test_what_makes_no_whole_is_said_and_no_operator_is_blamed(
    parts: tuple[np.ndarray, np.ndarray], said: str, tmp_path: Path
) -> None:
    one = made(tmp_path / "one", [BATCH, call("exp", np.ones((4, 3), parts[0].dtype))])
    two = made(tmp_path / "two", *([BATCH, call("exp", part)] for part in parts))
    found = compare_recordings(one, two)
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    assert said in " ".join(found.not_compared)


def test_what_one_rank_has_no_tensor_for_is_told_as_that(tmp_path: Path) -> None:
    # Given ranks with shapes that are no rows of one batch
    parts = [np.ones((2, 3), "f4"), np.ones((3, 2), "f4")]
    many = made(tmp_path / "many", *([call("exp", part)] for part in parts))
    calls = [next(iter(rank.calls(0))) for rank in many.ranks.values()]
    records = [one.records[0] for one in calls]
    forms = DataForms(list(many.ranks.values()))

    # When one rank has no tensor there, and when it has one
    forms.begin(0, [{}, {}], {})
    with pytest.raises(UnlikeDimsError) as without:
        forms.form(Seen(calls[0], records, None, equal=False))
    one = replace(records[0], content=replace(records[0].content, shape=(4, 3)))
    with pytest.raises(UnlikeDimsError) as beside:
        forms.form(Seen(calls[0], records, one, equal=False))

    # Then a shape is named where there is one alone
    shapes = "the shapes [(2, 3), (3, 2)] of the ranks"
    assert str(without.value) == f"one rank has no tensor beside {shapes}"
    assert str(beside.value) == f"{shapes} make no (4, 3) of one rank"
