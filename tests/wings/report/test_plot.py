"""`lockstep plot` draws what the page shows: pictures of a comparison and of one recording."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from lockstep.comparison import compare_recordings
from lockstep.reading.recorded_series import Series
from lockstep.report.comparison.kinds import ORIGIN
from lockstep.store.reader import open_recording
from lockstep.testing.fixtures import FaultyPair
from lockstep.wings.report import figures
from lockstep.wings.report.comparison_data import gather
from lockstep.wings.report.comparison_page import METRICS
from lockstep.wings.report.comparison_types import ComparisonData, TextColumn
from lockstep.wings.report.plot_command import plot
from lockstep.wings.report.strip_places import strip_places

pytest.importorskip("matplotlib", reason="needs matplotlib, of the plot extra")


@pytest.fixture(scope="module")
def paths(lockstep_faulty_pair: FaultyPair) -> list[str]:
    return [str(lockstep_faulty_pair.reference), str(lockstep_faulty_pair.candidate)]


@pytest.fixture(scope="module")
def data(paths: list[str]) -> ComparisonData:
    found = compare_recordings(*paths)
    return gather(found, *map(open_recording, paths), details=1)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(plot, [*map(str, arguments)], standalone_mode=False)


def test_of_two_recordings_each_chart_is_a_file(paths: list[str], tmp_path: Path) -> None:
    # when a comparison that differs is drawn
    done = run(*paths, "-o", tmp_path / "new" / "plots")
    # then the exit code is that of compare, and every chart is a PNG
    assert done.return_value == 1, done.output
    files = sorted((tmp_path / "new" / "plots").iterdir())
    scatters = {f"scatter-{one.column.replace('_', '-')}" for one in METRICS}
    assert {one.stem for one in files} == scatters | {"strip", "histogram", "heat-map"}
    assert all(one.read_bytes().startswith(b"\x89PNG") for one in files)
    assert sorted(done.output.split()[1::2]) == [str(one) for one in files]


def test_an_svg_is_the_same_each_time_and_of_the_chosen_metric(
    paths: list[str], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        run(*paths, "-o", tmp_path / name, "--picture", "svg", "--metric", "margin")
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert [one.name for one in first] == [
        "heat-map.svg", "histogram.svg", "scatter-margin.svg", "strip.svg",
    ]  # fmt: skip
    assert [one.read_bytes() for one in first] == [one.read_bytes() for one in second]


def test_of_one_recording_loss_and_norms_are_drawn(paths: list[str], tmp_path: Path) -> None:
    done = run(paths[0], "-o", tmp_path)
    assert done.return_value == 0, done.output
    names = {one.stem for one in tmp_path.iterdir()}
    assert {"loss", "norm-of-all-gradients", "norm-of-each-gradient"} <= names


def test_what_cannot_be_drawn_is_said(
    paths: list[str], lockstep_recording: Path, tmp_path: Path
) -> None:
    # given two recordings without whole tensors
    done = run(lockstep_recording, paths[1], "-o", tmp_path / "sketched", "--metric", "margin")
    # then there are no pictures of a pair, and why
    assert "no histogram and no heat map: " in done.output
    assert {one.stem for one in (tmp_path / "sketched").iterdir()} == {"scatter-margin", "strip"}
    # and of recordings of nothing, nothing
    for side, path in zip("ab", paths, strict=True):
        (tmp_path / side).mkdir()
        manifest = (Path(path) / "manifest.json").read_bytes()
        (tmp_path / side / "manifest.json").write_bytes(manifest)
    done = run(tmp_path / "a", tmp_path / "b", "-o", tmp_path / "empty")
    assert done.return_value == 2
    assert "nothing to draw: " in done.output
    assert "nothing was recorded" in done.output


def test_what_is_there_is_kept_without_force(paths: list[str], tmp_path: Path) -> None:
    # given a chart that is there already
    (tmp_path / "strip.png").write_text("mine")
    done = run(*paths, "-o", tmp_path, "--metric", "cosine")
    assert "exists already" in str(done.exception)
    assert [one.name for one in tmp_path.iterdir()] == ["strip.png"]
    # when it may be replaced, it is
    assert run(*paths, "-o", tmp_path, "--metric", "cosine", "--force").return_value == 1
    assert (tmp_path / "strip.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_sentence_says_what_to_install(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run(*paths, "-o", tmp_path)
    assert "pip install 'lockstep-numerics[plot]'" in str(done.exception)
    assert "Traceback" not in done.output


def test_nothing_to_draw_to_is_said(paths: list[str]) -> None:
    assert "give a directory with -o" in str(run(*paths).exception)
    one = run(paths[0], "-o", "never", "--metric", "margin")
    assert "give a candidate too" in str(one.exception)


def test_names_are_text_whatever_they_are_and_whatever_is_set(
    data: ComparisonData, tmp_path: Path
) -> None:
    # given names that are formulas, markup, long or in letters that the font lacks, and a user who has LaTeX on
    names = ("$\\frac{", "<script>", "x" * 10_000, "日本", "a\ud800\x1b[31m")
    at_names = np.arange(len(data.pairs), dtype=np.int32) % len(names)
    pairs = replace(data.pairs, module=TextColumn(at_names, names))
    import matplotlib

    with matplotlib.rc_context({"text.usetex": True}):
        # when they are drawn, without a warning
        with figures.drawing():
            strip = figures.strip_figure(pairs)
            heat = figures.heat_map_figure(data.details[data.origins[0]], "$\\frac{ <b>")
            series = Series(
                "$x$", "rank0", np.arange(3, dtype=np.int32), np.array([1, np.nan, np.inf])
            )
            curve = figures.series_figure(names[2], [series, replace(series, rank=names[0])])
            for number, figure in enumerate((strip, heat, curve)):
                figures.save(figure, tmp_path / f"{number}.svg", "svg")
        # then the user's settings are as they were
        assert matplotlib.rcParams["text.usetex"] is True
    assert b"<script>" not in (tmp_path / "0.svg").read_bytes()


def test_the_strip_has_each_site_once_where_it_ends(data: ComparisonData) -> None:
    found, pairs = strip_places(data.pairs), data.pairs
    sites = {
        (pairs.step[row], pairs.rank[row], pairs.phase[row], pairs.module[row], pairs.operator[row], pairs.call[row])
        for row in range(len(pairs))
    }  # fmt: skip
    assert len(found.row) == len(sites)
    assert found.lanes == ("step 0", "step 1")
    # the origin's site is shown by the origin
    shown = [pairs.kind[row] for row in found.row]
    assert shown.count(ORIGIN) == len(data.origins)
    # phases stand in their order, and nothing beyond the edges
    assert list(found.begins) == ["init", "data", "forward", "backward", "optimizer"]
    assert sorted(found.begins.values()) == list(found.begins.values())
    assert 0 < found.place.min() < found.place.max() < 1


def test_a_metric_that_is_known_of_none_is_not_drawn(data: ComparisonData) -> None:
    unknown = replace(data.pairs, max_ulp=np.full(len(data.pairs), np.nan))
    metric = next(one for one in METRICS if one.column == "max_ulp")
    with figures.drawing():
        assert figures.scatter_figure(unknown, metric) is None
        endless = replace(data.pairs, max_ulp=np.full(len(data.pairs), np.inf))
        assert figures.scatter_figure(endless, metric) is not None
