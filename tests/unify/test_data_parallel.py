"""Ranks that each train on a part of the batch, compared with one rank that trains on all of it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from made_ranks import call, made
from two_ranks import run_two_ranks

import lockstep
from lockstep import compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Course, Verdict
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.site import Phase, Role
from lockstep.report.comparison.screen import render_comparison
from lockstep.unify.joined_parts import UnlikeDimsError
from lockstep.unify.rank_layouts import (
    Form,
    Order,
    Spread,
    form_by_shape,
    interleaved,
    order_of,
    together,
)
from lockstep.unify.side_by_side import side_by_side

SCRIPT = Path(__file__).with_name("data_parallel.py")
TWINS = (
    "gpt+adamw",
    "conv+adamw",
    "gpt+adamw+clip",
    "conv+sgd+clip+uneven",
    "conv+sgd+uneven",
    "conv+sgd+longer",
    "conv+adamw+eight",
    "conv+adamw+quarters",
)
SOUND = {
    "gpt+adamw+clip": "gpt+adamw+clip",
    "conv+sgd+clip+uneven": "conv+sgd+clip+uneven",
    "conv+adamw+by-hand": "conv+adamw",
    "gpt+adamw+clip+fsdp2": "gpt+adamw+clip",
}
MORE_SOUND = {"gpt+sgd+bf16": "gpt+sgd+bf16", "gpt+adamw+clip+dealt": "gpt+adamw+clip"}
FAULTS = {
    "conv+adamw+unreduced": "conv+adamw",
    "gpt+adamw+undivided": "gpt+adamw",
    "conv+adamw+doubled-batch": "conv+adamw",
    "gpt+adamw+same-batch": "gpt+adamw",
    "gpt+adamw+dropout": "gpt+adamw",
    "conv+adamw+fsdp2+unreduced": "conv+adamw",
    "conv+sgd+uneven+local-count": "conv+sgd+uneven",
    "conv+adamw+by-hand+lost": "conv+adamw",
    "conv+adamw+by-hand+twice": "conv+adamw",
    "conv+adamw+by-hand+scaled": "conv+adamw",
}
ACCUMULATED = (
    "conv+adamw+parts",
    "conv+adamw+parts+by-hand+scaled",
    "conv+adamw+parts+dealt",
)
"""Of which each rank takes its rows in two parts."""
SHARED_UPDATES = ("conv+adamw+zero", "conv+adamw+zero+unsent")
"""Of which each rank updates some of the parameters, and sends them to the others; or does not."""
SLIPS_OF_PARTS = {
    # word by word what goes wrong: the first origin's operator, or the role of its tensor
    "never-reduced": "whose copies differ",
    "undivided-parts": "every gradient is 2.00 times",
    "zeroed": "param_grad does not agree",
    "doubled": "whose copies differ",
    "scaled-part": "loss does not agree",
    "same-part": "batch",
    "same-batch": "batch",
    "fsdp2+never-reduced": "param_grad",
    "fsdp2+doubled": "param_grad",
    "by-hand+lost": "param_grad is held by several ranks of the candidate, whose copies differ",
    "by-hand+twice": "param_grad does not agree",
}
LONGER = ("conv+sgd+longer", "conv+sgd+longer+later", "conv+sgd+longer+fsdp2")
"""Trained on after the recorded steps: soundly, unreduced, and sharded."""
WITHOUT_TENSORS = {"conv+adamw+sketch": "conv+adamw"}


def _recorded(programs: Path, folder: Path, one: list[str], many: list[str]) -> Path:
    alone = [str(programs / "python"), str(SCRIPT), str(folder / "one"), *one]
    subprocess.run(alone, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    run_two_ranks(programs, SCRIPT, str(folder / "many"), *many)
    return folder


@pytest.fixture(scope="module")
def runs(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All trainings, in one process of one rank and two of two: to start them takes longer than they do."""
    folder = tmp_path_factory.mktemp("data-parallel")
    return _recorded(
        programs,
        folder,
        [*TWINS],
        [*SOUND, *FAULTS, *LONGER, *WITHOUT_TENSORS, *ACCUMULATED, *SHARED_UPDATES],
    )


def _compared(folder: Path, one: str, many: str, *, turned: bool = False) -> Comparison:
    sides = [folder / "one" / one, folder / "many" / many]
    return compare_recordings(*(reversed(sides) if turned else sides))


def _fault(folder: Path, name: str) -> Comparison:
    found = _compared(folder, FAULTS[name], name)
    assert found.verdict is Verdict.DIVERGED
    return found


# --- whole trainings


@pytest.mark.parametrize("name", [one for one in SOUND if one != "gpt+adamw+clip"])
def test_a_sound_training_agrees_with_its_twin_of_one_rank(runs: Path, name: str) -> None:
    _agrees(_compared(runs, SOUND[name], name))


@pytest.mark.exhaustive
def test_other_numbers_and_orders_agree_too(programs: Path, tmp_path: Path) -> None:
    folder = _recorded(programs, tmp_path, sorted({*MORE_SOUND.values()}), [*MORE_SOUND])
    for name, one in MORE_SOUND.items():
        _agrees(_compared(folder, one, name))


def _agrees(found: Comparison) -> None:
    """They agree, each tensor of one rank was compared, and not all of them are equal to the bit."""
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    assert found.unaligned_reference == 0
    assert any(finding.difference > 0 for finding in found.findings)
    roles = {finding.pair.present.role for finding in found.findings}
    assert {Role.OUTPUT, Role.LOSS, Role.GRAD_OUTPUT, Role.PARAM_GRAD, Role.PARAM_AFTER} <= roles
    # and so do their ends, sharded or not, and the headline lists nothing that was not looked at
    assert found.ends is not None
    assert (found.ends.course, found.unrecorded) == (Course.NOISE, ())


def test_a_loss_that_ranks_scale_by_their_number_is_that_of_one_rank(runs: Path) -> None:
    # given summed losses that one rank divides by the count, and two by half of it before they are averaged
    name = "conv+sgd+clip+uneven"
    sides = side_by_side(*(lockstep.open(runs / side / name) for side in ("one", "many")))

    # then both have the same factor, so that no setting differs
    factors = [
        call.arguments["args.1"]
        for side in sides
        for call in side.ranks["rank0"].calls(1)
        if call.site.op == "torch.Tensor.mul"
    ]
    assert factors == [1 / 5, 1 / 5]


def test_either_side_may_be_the_one_of_several_ranks(runs: Path) -> None:
    found = _compared(runs, "gpt+adamw+clip", "gpt+adamw+clip", turned=True)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["gpt", "conv"])
def test_every_sound_pair_agrees(model: str, programs: Path, tmp_path: Path) -> None:
    words = product(("sgd", "adamw"), ("", "+clip"), ("", "+uneven"), ("", "+bf16"))
    twins = [f"{model}+{''.join(one)}" for one in words]
    others = {
        f"{one}+{how}": one
        for one in twins
        if "bf16" not in one
        for how in ("dealt", "by-hand", "fsdp2")
    }
    pairs = {one: one for one in twins} | others
    folder = _recorded(programs, tmp_path, twins, [*pairs])
    for many, one in pairs.items():
        found = _compared(folder, one, many)
        assert (found.verdict, found.not_compared) == (Verdict.AGREE, ()), many


# --- gradients that are accumulated


@pytest.mark.parametrize("one", ["conv+adamw+eight", "conv+adamw+quarters"])
def test_ranks_that_accumulate_agree_with_one_that_takes_the_batch_whole_or_in_other_parts(
    runs: Path, one: str
) -> None:
    found = _compared(runs, one, "conv+adamw+parts")
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    roles = {finding.pair.present.role for finding in found.findings}
    assert {Role.OUTPUT, Role.LOSS, Role.GRAD_OUTPUT, Role.PARAM_GRAD, Role.PARAM_AFTER} <= roles
    assert found.ends is not None
    assert found.ends.course is Course.NOISE


def test_a_gradient_of_one_rank_that_is_off_is_named_where_both_accumulate(runs: Path) -> None:
    # given one rank that takes four parts, and two that take two each, of which one scales a gradient
    found = _compared(runs, "conv+adamw+quarters", "conv+adamw+parts+by-hand+scaled", turned=True)
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].tensor) == (0, "1.bias")


def test_parts_that_straddle_those_of_one_rank_are_refused(runs: Path) -> None:
    # given two ranks whose parts each have samples of two parts of the one rank
    with pytest.raises(UsageError, match="record one rank that takes each batch whole"):
        _compared(runs, "conv+adamw+quarters", "conv+adamw+parts+dealt")


@pytest.mark.exhaustive
def test_every_way_of_accumulating_agrees_and_every_slip_is_named(
    programs: Path, tmp_path: Path
) -> None:
    ways = ("", "+by-hand", "+fsdp2", "+each-reduced", "+dealt")
    sound = [f"{model}+adamw+parts{way}" for model in ("gpt", "conv") for way in ways]
    slips = {f"conv+adamw+parts+{word}": said for word, said in SLIPS_OF_PARTS.items()}
    ones = [
        f"{model}+adamw+{how}"
        for model in ("gpt", "conv")
        for how in ("eight", "parts", "quarters")
    ]
    folder = _recorded(programs, tmp_path, ones, [*sound, *slips])
    for many, one in product(sound, ones):
        if many[:4] == one[:4] and not (many.endswith("dealt") and one.endswith("quarters")):
            found = _compared(folder, one, many)
            assert (found.verdict, found.not_compared) == (Verdict.AGREE, ()), (many, one)
    for many, said in slips.items():
        found = _compared(folder, "conv+adamw+eight", many)
        assert found.verdict is Verdict.DIVERGED, many
        first = found.origins[0]
        assert said in f"{first.op} {first.role.value} {first.reason}", many


# --- updates that ranks share out


def test_ranks_that_each_update_some_parameters_agree(runs: Path) -> None:
    _agrees(_compared(runs, "conv+adamw", "conv+adamw+zero"))


def test_parameters_that_are_not_sent_after_their_update_are_named(runs: Path) -> None:
    first = _compared(runs, "conv+adamw", "conv+adamw+zero+unsent").origins[0]
    assert (first.step, first.phase, first.role) == (0, Phase.OPTIMIZER, Role.PARAM_AFTER)
    assert "whose copies differ" in first.reason


@pytest.mark.exhaustive
def test_slips_of_shared_updates_are_named(programs: Path, tmp_path: Path) -> None:
    names = {"conv+adamw+zero+rate": "lr is 0.01", "conv+adamw+zero+other-state": "exp_avg"}
    folder = _recorded(programs, tmp_path, ["conv+adamw"], [*names])
    for many, said in names.items():
        found = _compared(folder, "conv+adamw", many)
        assert (found.verdict, said in found.origins[0].reason) == (Verdict.DIVERGED, True)


# --- their ends


def test_ends_of_one_rank_and_of_many_are_compared(runs: Path) -> None:
    # given two ranks that go on for two steps
    longer = _compared(runs, *("conv+sgd+longer",) * 2)

    # then it says how far apart parameters and losses are at the end, which is rounding
    assert (longer.verdict, longer.unrecorded) == (Verdict.AGREE, ())
    assert longer.ends is not None
    assert 0 < longer.ends.rel_l2 < 1e-3
    assert longer.trained == (4, 4)
    assert longer.ends is not None
    assert longer.ends.final_losses[1] == pytest.approx(longer.ends.final_losses[0], rel=1e-4)


def test_ranks_that_part_after_the_recorded_steps_are_named(runs: Path) -> None:
    # given recorded steps that agree, and gradients that are not reduced after them
    found = _compared(runs, "conv+sgd+longer", "conv+sgd+longer+later")

    # then the parameters whose copies differ at the end are the difference
    assert (found.verdict, found.origins) == (Verdict.DIVERGED, ())
    assert found.ends is not None
    assert (found.ends.course, found.ends.certain) == (
        Course.APART,
        True,
    )
    assert "differ at the end between the ranks of the candidate" in found.ends.words


def test_an_end_that_cannot_be_put_together_is_in_the_headline(runs: Path) -> None:
    # given parameters that two ranks hold parts of, and go on to train
    found = _compared(runs, "conv+sgd+longer", "conv+sgd+longer+fsdp2")

    # then the recorded steps agree, and the headline says what of the end was not looked at
    assert found.ends is not None
    assert found.ends.course is Course.UNKNOWN
    said = " ".join(render_comparison(found).plain.split("Tensors")[0].split())
    assert said.startswith("AGREE: steps 0-1 of 4 trained")
    assert "was not compared: they are parts, whose elements are kept for recorded steps" in said


# --- slips


def test_a_gradient_that_is_not_reduced_is_named(runs: Path) -> None:
    first = _fault(runs, "conv+adamw+unreduced").origins[0]
    assert (first.step, first.phase, first.role) == (0, Phase.BACKWARD, Role.PARAM_GRAD)
    assert "between backward and optimizer" in first.op
    assert "held by several ranks of the candidate, whose copies differ" in first.reason


def test_gradients_that_are_summed_and_not_divided_are_named(runs: Path) -> None:
    first = _fault(runs, "gpt+adamw+undivided").origins[0]
    assert (first.step, first.phase, first.role) == (0, Phase.BACKWARD, Role.PARAM_GRAD)
    assert "all by 2" in first.reason


def test_gradients_that_sharded_ranks_do_not_reduce_are_named(runs: Path) -> None:
    first = _fault(runs, "conv+adamw+fsdp2+unreduced").origins[0]
    assert (first.step, first.phase, first.role) == (0, Phase.BACKWARD, Role.PARAM_GRAD)


def test_a_batch_of_one_rank_that_is_too_large_is_named(runs: Path) -> None:
    first = _fault(runs, "conv+adamw+doubled-batch").origins[0]
    assert first.phase is Phase.DATA
    assert "shape (6, 3, 8, 8) in the reference and (9, 3, 8, 8) in the candidate" in first.reason


def test_ranks_that_train_on_the_same_rows_are_named(runs: Path) -> None:
    first = _fault(runs, "gpt+adamw+same-batch").origins[0]
    assert first.phase is Phase.DATA


def test_a_rank_with_other_dropout_is_named_with_its_setting(runs: Path) -> None:
    first = _fault(runs, "gpt+adamw+dropout").origins[0]
    assert (first.module, first.phase) == ("blocks.0.dropout", Phase.FORWARD)
    assert "rank0: 0.0, rank1: 0.5" in first.reason


def test_a_loss_that_each_rank_divides_by_its_own_count_is_named(runs: Path) -> None:
    found = _fault(runs, "conv+sgd+uneven+local-count")
    # then the first step, whose parts are of one size, agrees, and the scaling of the second one's loss is the origin
    assert (found.origins[0].step, found.origins[0].phase) == (1, Phase.FORWARD)
    assert found.origins[0].op.endswith(("mul", "loss"))


@pytest.mark.parametrize("slip", ["lost", "twice", "scaled"])
def test_a_slip_in_one_gradient_of_a_hand_written_loop_is_named(runs: Path, slip: str) -> None:
    origins = _fault(runs, f"conv+adamw+by-hand+{slip}").origins
    assert (origins[0].step, origins[0].tensor, origins[0].role) == (0, "1.bias", Role.PARAM_GRAD)


def test_without_whole_tensors_nothing_agrees(runs: Path) -> None:
    found = _compared(runs, "conv+adamw", "conv+adamw+sketch")
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    assert "record with --save tensors" in " ".join(found.not_compared)
    # and the next step records both with them, and nothing is said of tensors that were not kept
    assert found.what_next is not None
    assert found.what_next.words == "record whole tensors, of which ranks can be put together"
    assert found.what_next.command.count("--save tensors") == 2
    assert not any("--save tensors: only what both" in one for one in found.notes)


# --- single tensors


@pytest.mark.parametrize(
    ("parts", "whole", "equal", "spread"),
    [
        ([(2, 3), (2, 3)], (4, 3), False, Spread.BATCH),
        ([(2, 3), (1, 3)], (3, 3), False, Spread.BATCH),
        ([(3, 2), (3, 2)], (3, 4), True, Spread.BATCH),
        ([(2, 3), (2, 3)], (2, 3), True, Spread.COPIES),
        ([(2, 3), (2, 3)], (2, 3), False, None),
        ([(2, 3), (2, 3)], (4, 6), False, None),
        ([(2, 3), (2, 3)], (4, 3, 1), False, None),
        ([(4,), (4,)], None, True, Spread.COPIES),
        ([(4,), (3,)], None, False, Spread.BATCH),
    ],
)
def test_shapes_tell_how_ranks_hold_a_tensor(
    parts: list[tuple[int, ...]], whole: tuple[int, ...] | None, equal: bool, spread: Spread | None
) -> None:
    form = form_by_shape(parts, whole, equal=equal)
    assert (None if form is None else form.spread) is spread


def test_dealt_rows_are_put_in_order_by_their_content() -> None:
    whole = np.arange(12, dtype="f4").reshape(6, 2)
    order = order_of(np.concatenate([whole[::2], whole[1::2]]), whole)
    assert order is not None
    # blocks of three rows of each sample, as when tokens are laid out row after row
    tokens = np.arange(18, dtype="f4").reshape(18, 1)
    dealt = np.concatenate([tokens.reshape(6, 3)[::2], tokens.reshape(6, 3)[1::2]]).reshape(18, 1)
    assert np.array_equal(order.of(dealt, 0), tokens)
    with pytest.raises(UnlikeDimsError, match="7 rows are no multiple of the batch of 6"):
        order.of(np.zeros((7, 1)), 0)
    assert order_of(whole + 1, whole) is None
    assert order_of(whole, whole) == Order()


def test_heads_before_the_batch_are_interleaved() -> None:
    whole = np.arange(12, dtype="f4").reshape(2, 6)  # two heads of six samples
    parts = [whole[:, :4].reshape(8), whole[:, 4:].reshape(4)]
    plain, mixed = interleaved(Form(Spread.BATCH), [one.shape for one in parts], {0: 4, 1: 2})
    assert np.array_equal(together(parts, mixed, "float32"), whole.reshape(12))
    assert not np.array_equal(together(parts, plain, "float32"), whole.reshape(12))


def test_norms_of_parts_make_the_norm_of_the_whole() -> None:
    parts = [np.array(3.0, "f4"), np.array(4.0, "f4")]
    assert together(parts, Form(Spread.NORM), "float32") == 5.0


def test_sums_are_rounded_once() -> None:
    tiny = np.float32(2**-24)
    parts = [np.array([1.0], "f4"), np.array([tiny], "f4"), np.array([tiny], "f4")]
    assert together(parts, Form(Spread.SUM), "float32")[0] == np.float32(1 + 2**-23)
    assert together(parts, Form(Spread.MEAN), "float32")[0] == np.float32((1 + 2**-23) / 3)
    assert together(parts, Form(Spread.SUM), "float32", divided_by=2)[0] == 0.5 + 2**-24


TOKENS, KEYS = np.arange(32, dtype="f4").reshape(8, 4), np.array([3, 1, 0, 2] * 4)
SHARES = (slice(3), slice(3, 8))


def mixture(own: slice, slip: str = "") -> list[ReadCall]:
    """What a mixture of experts calls for some of the tokens: it sorts two rows of each by their expert, and back."""
    keys = KEYS.reshape(-1, 2)[own].ravel()
    places = np.argsort(keys, kind="stable")
    rows = TOKENS[own][places // 2]
    scaled = rows * (keys[places, None] + 1)
    if slip == "no sort":
        scaled = scaled[np.argsort(places)]
    back = np.empty_like(places)
    back[places] = np.arange(places.size)
    if slip == "wrong way back":
        back = places
    made = scaled[back].reshape(-1, 2, 4).sum(1)
    sizes = np.bincount(keys, minlength=4).cumsum()
    sorts = [ReadTensor(Role.INPUT, "args.0", keys)]
    sorts += [
        ReadTensor(Role.OUTPUT, f"result.{n}", one) for n, one in enumerate((keys[places], places))
    ]
    inside = {
        "floor_divide": places // 2,
        "index": rows,
        "mul": scaled,
        "scatter": back,
        "cumsum": sizes,
    }
    return [
        ReadCall(0, "experts", "torch.sort", sorts if slip != "no indices" else sorts[:1]),
        *(replace(call(op, one), module="experts") for op, one in inside.items()),
        call("exp", made),
    ]


def test_rows_that_a_module_sorts_are_put_together_by_the_indices_of_its_sort(
    tmp_path: Path,
) -> None:
    # given ranks that each sort the rows of their tokens by expert, as one rank sorts all
    one = made(tmp_path / "one", mixture(slice(None)))
    two = made(tmp_path / "two", *map(mixture, SHARES))

    # when they are compared, then every tensor has its partner, whole numbers that point at rows too
    found = compare_recordings(one, two)
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    assert len(found.findings) == 9


@pytest.mark.parametrize(
    ("slip", "verdict", "words"),
    [
        ("no sort", Verdict.DIVERGED, "torch.mul"),
        ("wrong way back", Verdict.DIVERGED, "at which rows its whole numbers point"),
        ("no indices", Verdict.INCOMPARABLE, "experts sorts the rows of each rank's batch"),
    ],
)
def test_rows_that_were_sorted_otherwise_do_not_agree(
    tmp_path: Path, slip: str, verdict: Verdict, words: str
) -> None:
    # given a rank whose rows stand elsewhere, go back elsewhere, or of which nothing tells where they stand
    one = made(tmp_path / "one", mixture(slice(None)))
    two = made(tmp_path / "two", mixture(SHARES[0], slip), mixture(SHARES[1]))

    # when they are compared, then it is said
    found = compare_recordings(one, two)
    assert found.verdict is verdict
    assert words in " ".join([*found.not_compared, *(origin.op for origin in found.origins)])


def picking(own: slice, slip: str = "") -> list[ReadCall]:
    """What a mixture of experts calls that picks the tokens of one expert after the other by a mask of two choices."""
    choices = KEYS.reshape(-1, 2)[own]
    calls = []
    for expert in range(4):
        mask = (choices == expert).T
        places = np.nonzero(mask)
        if slip == "other token" and expert == 2:
            places = places[0], (places[1] + 1) % len(choices)
        tensors = [ReadTensor(Role.INPUT, "args.0", mask.astype(np.int64))]
        tensors += [
            ReadTensor(Role.OUTPUT, f"result.{n}", one.astype(np.int64))
            for n, one in enumerate(places)
        ]
        scaled = TOKENS[own][places[1]] * np.float32(expert + 1)
        if slip == "scaled" and expert == 2:
            scaled = scaled * np.float32(1.01)
        calls += [
            ReadCall(0, "experts", "torch.where", tensors),
            replace(call("mul", scaled), module="experts"),
        ]
    return calls


@pytest.mark.parametrize(
    ("slip", "verdict", "words"),
    [
        ("", Verdict.AGREE, ""),
        ("scaled", Verdict.DIVERGED, "torch.mul"),
        ("other token", Verdict.INCOMPARABLE, "experts sorts the rows of each rank's batch"),
    ],
)
def test_rows_that_a_mask_picks_are_put_together_by_its_places(
    tmp_path: Path, slip: str, verdict: Verdict, words: str
) -> None:
    # given ranks that pick the tokens of each expert among their own, in the order of the mask's axes
    one = made(tmp_path / "one", picking(slice(None)))
    two = made(tmp_path / "two", picking(SHARES[0], slip), picking(SHARES[1]))
    found = compare_recordings(one, two)
    assert found.verdict is verdict
    assert words in " ".join([*found.not_compared, *(origin.op for origin in found.origins)])
    assert slip or len(found.findings) == 16
