"""What a page shows of one recording: numbers over steps, the batch, the modules, the set-up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import lockstep
from lockstep.core.records import Content, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.reading.recorded_series import losses_of, scalars_of, tensors_of
from lockstep.reading.recorded_values import values_of
from lockstep.report.page import Chart, Grid, Images, Sentences, TextColumn, Verdict
from lockstep.store.pieces import Decoded
from lockstep.store.reader import Recording, open_recording
from lockstep.wings.report.batch_blocks import batch_blocks
from lockstep.wings.report.batch_pictures import picture_of
from lockstep.wings.report.comparison_types import Floats
from lockstep.wings.report.recording_data import gather_recording
from lockstep.wings.report.recording_page import recording_page
from lockstep.wings.report.recording_types import (
    HEAT_MAP,
    IMAGES,
    TOKENS,
    WAVE,
    BatchTensor,
    RecordingData,
)

STEPS, TRAINED = 3, 5


@pytest.fixture(scope="module")
def watched() -> dict[str, list[float]]:
    """What a training says of itself, step by step."""
    return {"loss": [], "lr": [], "norm": [], "gradient": []}


@pytest.fixture(scope="module")
def recording(
    tmp_path_factory: pytest.TempPathFactory, watched: dict[str, list[float]]
) -> Recording:
    """Three recorded steps of five, of images with a frozen first layer and a falling learning rate."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten(), torch.nn.Linear(2 * 36, 4)
    )
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    path = tmp_path_factory.mktemp("one") / "run"
    with lockstep.record(path, model=model, steps=f"0:{STEPS}", save="tensors"):
        for step in range(TRAINED):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            watched["loss"].append(loss.item())
            watched["lr"].append(optimizer.param_groups[0]["lr"])
            watched["gradient"].append(model[2].weight.grad.double().norm().item())
            optimizer.step()
            watched["norm"].append(model[2].weight.detach().double().norm().item())
    return open_recording(path)


@pytest.fixture(scope="module")
def data(recording: Recording) -> RecordingData:
    return gather_recording(recording)


def values(data: RecordingData, name: str) -> Floats:
    return next(one.values for one in (*data.losses, *data.scalars) if one.quantity == name)


def test_losses_and_learning_rates_are_those_of_the_training(
    data: RecordingData, watched: dict[str, list[float]]
) -> None:
    # given a training that has said what they were
    assert values(data, "loss") == pytest.approx(watched["loss"][:STEPS])
    assert values(data, "lr of SGD") == pytest.approx(watched["lr"][:STEPS])
    # and after the recorded steps the loss goes on
    later = next(one for one in data.losses if one.is_later)
    assert set(later.steps.tolist()) <= {STEPS, STEPS + 1}
    for step, value in zip(later.steps, later.values, strict=True):
        assert value == pytest.approx(watched["loss"][step])


def test_parameters_and_gradients_have_their_numbers_at_each_step(
    data: RecordingData, watched: dict[str, list[float]]
) -> None:
    weight, gradient = (
        next(one for one in data.tensors if (one.name, one.what) == ("2.weight", what))
        for what in ("parameter", "gradient")
    )
    # then a parameter is that before the first step and behind each, a gradient that of its step
    assert weight.steps.tolist() == [0, 1, 2, 3]
    assert weight.norm[1:] == pytest.approx(watched["norm"][:STEPS])
    assert gradient.steps.tolist() == [0, 1, 2]
    assert gradient.norm == pytest.approx(watched["gradient"][:STEPS])
    assert (weight.shape, weight.dtype, weight.module) == ((4, 72), "float32", "2")
    assert (gradient.zeros == 0).all()
    # and what is frozen is there once, without a gradient
    frozen = [one for one in data.tensors if one.name == "0.weight"]
    assert [(one.what, one.steps.tolist()) for one in frozen] == [("parameter", [0])]
    # in the order of the model, parameters first
    names = [one.name for one in data.tensors if one.what == "gradient"]
    assert names == ["2.weight", "2.bias"]


def test_a_norm_of_many_leaves_out_what_is_not_known_at_every_step(
    data: RecordingData, watched: dict[str, list[float]]
) -> None:
    # given frozen parameters beside those that are trained
    series = {one.quantity: one for one in data.scalars}
    # then the sum is over the same ones at every step, and says so
    norms = series["norm of 2 of 4 parameters"].values
    assert norms.shape == (4,)
    bias = next(one for one in data.tensors if one.name == "2.bias")
    expected = np.hypot(watched["norm"][:STEPS], bias.norm[1:])
    assert norms[1:] == pytest.approx(expected)
    assert len(series["norm of all gradients"].values) == STEPS


def test_the_batch_is_shown_as_what_it_is(data: RecordingData) -> None:
    kinds = {one.shape: one.kind for one in data.batch}
    assert kinds == {(5, 3, 8, 8): IMAGES, (5,): TOKENS}
    images = next(one for one in data.batch if one.kind == IMAGES)
    assert images.values is not None
    assert images.values.shape == (5, 8, 8, 3)
    labels = next(one for one in data.batch if one.kind == TOKENS)
    assert labels.values is not None
    assert labels.values.tolist() == [[0, 1, 2, 3, 0]]


def test_the_module_tree_has_sizes_and_the_set_up_its_facts(data: RecordingData) -> None:
    sizes = {one.path: (one.parameters, one.parameters_inside) for one in data.modules}
    assert sizes == {"": (0, 348), "0": (56, 56), "1": (0, 0), "2": (292, 292)}
    facts = {(one.group, one.name): one.value for one in data.facts}
    assert facts["packages", "torch"] == torch.__version__
    assert facts["recording", "save"] == "tensors"
    assert facts["torch.optim.SGD", "momentum"] == "0.9"
    assert data.run.steps == (0, 1, 2)
    assert data.records > data.contents > 0


def test_values_are_counted_at_each_step_from_whole_tensors(
    recording: Recording, data: RecordingData
) -> None:
    # given what a parameter holds before the first step and behind each
    weight, gradient = (
        next(one for one in data.values if (one.name, one.what) == ("2.weight", what))
        for what in ("parameter", "gradient")
    )
    assert weight.steps.tolist() == [0, 1, 2, 3]
    assert gradient.steps.tolist() == [0, 1, 2]
    # then each of its elements is in one bin of the step, as NumPy counts them
    last = list(recording.ranks["rank0"].calls(2, kind=CallKind.OPTIMIZER))
    opened = next(
        one.content.opened()
        for call in last
        for one in call.with_role(Role.PARAM_AFTER)
        if one.name == "2.weight"
    )
    assert isinstance(opened, Decoded)
    held = opened.part(0, opened.size)
    counts, _ = np.histogram(held.astype(np.float64), weight.edges)
    assert weight.counts[-1].tolist() == counts.tolist()
    assert (weight.counts.sum(axis=1) + weight.outside).tolist()[0] >= held.size
    assert not weight.sampled
    # and the page shows them where the parameter is listed, once per place
    rows = recording_page(recording).rows
    assert rows is not None
    names = rows.columns["tensor"]
    assert isinstance(names, TextColumn)
    shown_at = [row for row in rows.details if names.names[names.codes[row]] == "2.weight"]
    assert (
        len(shown_at) == 5
    )  # at the beginning, before and behind an update; where it adds up, and in the update
    # what is left out by its size is the last
    assert [one.name for one in values_of(recording, most_values=60)] == ["0.weight", "0.bias"]


def test_without_whole_tensors_values_are_told_by_statistics(lockstep_recording: Path) -> None:
    made = open_recording(lockstep_recording)
    assert not list(values_of(made))
    page = recording_page(made)
    assert page.rows is not None
    assert not page.rows.details
    verdict = page.areas[0]
    assert isinstance(verdict, Verdict)
    assert "--save tensors" in str(dict(verdict.facts)["Saved"])
    # the deviation is that of the elements
    deviation, mean, norm = (page.rows.columns[one] for one in ("std", "mean", "norm"))
    assert np.isfinite(deviation).any()
    assert np.nanmin(np.asarray(norm) - np.abs(np.asarray(mean))) > -1e-9


def test_what_is_too_much_is_left_out_and_counted(recording: Recording) -> None:
    some, left_out = tensors_of(recording, most_points=6)
    assert [one.name for one in some] == ["0.weight", "0.bias", "2.weight"]
    assert left_out == 3


def test_a_recording_of_sketches_says_what_its_batch_lacks(lockstep_recording: Path) -> None:
    made = open_recording(lockstep_recording)
    found = gather_recording(made)
    assert found.batch
    assert all(one.values is None for one in found.batch)
    assert "record with --save tensors" in found.batch[0].without
    assert list(losses_of(made))
    assert list(scalars_of(made, tensors_of(made)[0]))


def test_of_two_ranks_each_has_its_series(lockstep_two_ranks: Path) -> None:
    found = gather_recording(open_recording(lockstep_two_ranks))
    assert {one.rank for one in found.losses} == {"rank0", "rank1"}
    assert {one.rank for one in found.tensors} == {"rank0", "rank1"}


def shown(value: npt.NDArray[Any], dtype: str = "", *, kept: bool = True) -> BatchTensor:
    content = Content(
        0, dtype or str(value.dtype), value.shape, "cpu", None, None,
        loader=(lambda: value) if kept else None,
    )  # fmt: skip
    site = Site("", "batch", 0, Phase.DATA)
    return picture_of(TensorRecord("rank0", 0, site, Role.OUTPUT, 0, "x", 0, 0, content))


F4 = np.float32


@pytest.mark.parametrize(
    ("value", "kind", "shape"),
    [
        (np.zeros((4, 3, 300, 200), F4), IMAGES, (4, 100, 100, 3)),
        (np.zeros((40, 16, 16, 1), F4), IMAGES, (8, 16, 16, 1)),
        (np.zeros((1, 28, 28), np.uint8), IMAGES, (1, 28, 28, 1)),
        (np.zeros((4, 3, 2, 2), F4), HEAT_MAP, (24, 2)),
        (np.zeros((4, 5, 9, 9), F4), HEAT_MAP, (64, 9)),
        (np.zeros((80, 500), np.int64), TOKENS, (64, 64)),
        (np.zeros((7,), np.int32), TOKENS, (1, 7)),
        (np.zeros((9, 16000), F4), WAVE, (8, 2, 512)),
        (np.zeros((2, 1, 16000), F4), WAVE, (2, 2, 512)),
        (np.zeros((1200,), np.float64), WAVE, (1, 2, 512)),
        (np.zeros((300, 500), F4), HEAT_MAP, (64, 128)),
        (np.zeros((3, 4, 5), np.complex64), HEAT_MAP, (12, 5)),
        (np.ones((9, 9), np.bool_), HEAT_MAP, (9, 9)),
        (np.zeros((1, 8, 8), np.bool_), HEAT_MAP, (8, 8)),
        (np.array(3.0), HEAT_MAP, (1, 1)),
        (np.zeros((2, 3, 4), np.int64), HEAT_MAP, (6, 4)),
    ],
    ids=lambda one: str(getattr(one, "shape", one)),
)
def test_each_kind_of_tensor_has_its_picture(
    value: npt.NDArray[Any], kind: str, shape: tuple[int, ...]
) -> None:
    found = shown(value)
    assert found.values is not None
    assert (found.kind, found.values.shape, found.without) == (kind, shape, "")


def test_a_wave_keeps_its_peaks_and_a_map_its_largest_elements() -> None:
    wave = np.zeros((1, 48_000), F4)
    wave[0, 31_111], wave[0, 5] = 2.5, -3.5
    found = shown(wave)
    assert found.values is not None
    assert (found.values[0, 1].max(), found.values[0, 0].min()) == (2.5, -3.5)
    assert (found.low, found.high) == (-3.5, 2.5)
    table = np.zeros((999, 777), F4)
    table[500, 600], table[501, 601] = -9, 4
    heat = shown(table)
    assert heat.values is not None
    assert (heat.values.min(), np.count_nonzero(heat.values)) == (-9, 1)


def test_of_a_huge_tensor_the_beginning_is_read_and_it_is_said() -> None:
    found = shown(np.zeros((3000, 1200), F4))
    assert found.kind == WAVE
    assert found.part == "the first 8 of 3000 rows"
    deep = shown(np.zeros((2, 2, 1_500, 900), F4))
    assert (deep.kind, deep.part) == (HEAT_MAP, "the beginning")


def test_what_cannot_be_shown_says_why() -> None:
    assert shown(np.zeros((3, 3)), kept=False).without.startswith("it was not saved whole")
    assert shown(np.zeros((0, 3))).without == "it has no elements"
    odd = shown(np.full((3, 3), math.nan))
    assert (odd.kind, math.isnan(odd.low)) == (HEAT_MAP, True)


def test_the_page_of_a_recording_of_nothing_says_so_and_offers_no_audit(
    tmp_path: Path, recording: Recording
) -> None:
    (tmp_path / "manifest.json").write_bytes((recording.path / "manifest.json").read_bytes())
    verdict = recording_page(open_recording(tmp_path)).areas[0]
    assert isinstance(verdict, Verdict)
    assert verdict.sentence == "Nothing was recorded."
    assert verdict.commands is not None
    assert [" show " in one.command for one in verdict.commands.commands] == [True]
    full = recording_page(recording).areas[0]
    assert isinstance(full, Verdict)
    assert full.commands is not None
    assert " audit " in full.commands.commands[1].command


def test_a_batch_is_drawn_as_what_it_is() -> None:
    # given three images of one channel, from -1 to 3, of which one element is no number
    images = np.zeros((3, 1, 5, 4), F4)
    images[0, 0, 0, 0], images[2, 0, 4, 3], images[1, 0, 0, 0] = -1, 3, np.nan
    (drawn,) = batch_blocks(shown(images))
    # then each is there, black is the smallest and white the largest of all of them
    assert isinstance(drawn, Images)
    assert (drawn.height, drawn.width, drawn.channels, drawn.values.size) == (5, 4, 1, 60)
    assert (drawn.values[0], drawn.values[-1], drawn.values[1], drawn.values[20]) == (0, 255, 64, 0)
    assert [row[0] for row in drawn.rows] == ["0", "1", "2"]
    assert drawn.rows[2][3] == 3
    # ids are numbers beside their positions, a row of the batch downwards
    (ids,) = batch_blocks(shown(np.array([[7, 8, 9], [1, 2, 3]])))
    assert isinstance(ids, Grid)
    assert ids.titles == ("position", "row 0", "row 1")
    assert list(ids.rows) == [("0", "7", "1"), ("1", "8", "2"), ("2", "9", "3")]
    # each wave has a curve of its own, over its samples
    waves = batch_blocks(shown(np.arange(4000, dtype=F4).reshape(2, 2000)))
    assert all(isinstance(one, Chart) for one in waves)
    assert [one.lines[1].values[-1] for one in waves if isinstance(one, Chart)] == [1999, 3999]
    # what was not saved says so
    (nothing,) = batch_blocks(shown(np.zeros((3, 3)), kept=False))
    assert isinstance(nothing, Sentences)


def test_an_image_of_one_number_is_grey() -> None:
    (drawn,) = batch_blocks(shown(np.full((1, 3, 8, 8), 2.5, F4)))
    assert isinstance(drawn, Images)
    assert set(drawn.values.tolist()) == {128}
