"""Charts as pictures: what the pages draw, for a paper or a slide, by matplotlib.

Nothing of a user's matplotlib settings holds here: names are never taken for formulas or for LaTeX.
"""

from __future__ import annotations

import importlib
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np

from lockstep.core.errors import UsageError
from lockstep.core.replacement import replacing
from lockstep.reading.recorded_series import Series, TensorSeries
from lockstep.report.comparison import kinds
from lockstep.report.comparison.kinds import KINDS
from lockstep.report.page import Kind, Metric
from lockstep.report.page.escape import shortened, visible
from lockstep.wings.report.comparison_types import Detail, Floats, Pairs
from lockstep.wings.report.strip_places import StripPlaces, strip_places

Figure = Any

COLOURS = {
    "fault": "#b3261e", "setup": "#7d5200", "agree": "#1c6e46", "none": "#63656d", "unjudged": "#63559a",
    "inherited": "#d39a93", "noise": "#3d648c", "equal": "#c4c5c2",
}  # fmt: skip
"""By the colour of a kind, as on the page in light."""

_MARKERS = {"fault": "v", "setup": "D", "inherited": ".", "unjudged": "x", "noise": "."}
_SMALL, _LARGE = 5, 42
_MOST_POINTS = 5000
"""Of more points an SVG holds a picture: a browser would not open it."""

_MOST_CURVES = 10
_RAMP = ("#c4c5c2", "#9fb6ce", "#ecc95f", "#e7a23c", "#dd7432", "#cb4530", "#ab2437", "#7a1846")
"""Equal, below its floor, then a colour for each power of ten beyond."""


def load_matplotlib() -> Any:
    """matplotlib, which a comparison and a page do without. Raises UsageError if it is not installed."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise UsageError(
            "pictures need matplotlib; pip install 'lockstep-numerics[plot]', or use `lockstep report`"
        ) from error


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with settings of ours."""
    matplotlib = load_matplotlib()
    with matplotlib.rc_context(), catch_warnings():
        # A glyph that the font lacks is drawn as a box.
        filterwarnings("ignore", message=r"Glyph \d+", category=UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"text.parse_math": False, "font.size": 9, "axes.titlesize": 10, "svg.hashsalt": "lockstep",
             "savefig.dpi": 160, "axes.spines.top": False, "axes.spines.right": False,
             "figure.constrained_layout.use": True}
        )  # fmt: skip
        yield


def save(figure: Figure, path: Path, form: str) -> None:
    """Write a figure as "png" or "svg"; the same figure gives the same file.

    Raises OSError if the file cannot be written.
    """
    with replacing(path) as aside:
        figure.savefig(aside, format=form, metadata={"Date": None} if form == "svg" else None)


def safe_name(text: str) -> str:
    """A text as part of a file name.

    >>> safe_name("lr of AdamW, group 1/../x")
    'lr-of-adamw-group-1-x'
    """
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "chart"


# ------------------------------------------------------------------------------------- comparison


def scatter_figure(pairs: Pairs, metric: Metric) -> Figure | None:
    """One metric of all pairs over execution order; None where it is known of none."""
    values = np.asarray(getattr(pairs, metric.column), np.float64)
    values = np.maximum(0, 1 - values) if metric.falling else values
    drawn = np.isfinite(values) & (values > 0)
    if not (values >= 0).any():
        return None
    figure, axes = _figure(9, 3.6)
    top = values[drawn].max() if drawn.any() else 1.0
    bottom = values[drawn].min() if drawn.any() else 0.1
    places = np.where(values == 0, bottom / 4, np.where(np.isinf(values), top * 4, values))
    for kind in reversed(KINDS):
        _dots(axes, places, np.isfinite(places) & pairs.kind.is_one_of(kind.name), kind)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_short)
    axes.yaxis.set_minor_formatter(lambda value, place: "")
    if (values == 0).any():
        axes.axhspan(bottom / 6, bottom / 2.6, color="#f1f1ee", zorder=0)
        axes.text(0.005, bottom / 2.6, "equal", transform=axes.get_yaxis_transform(), va="bottom")
    if metric.column == "margin" and bottom <= 1 <= top:
        axes.axhline(1, color=COLOURS["agree"], linestyle="--", linewidth=0.8)
    _mark_steps(axes, pairs)
    axes.set(title=f"{metric.title} over execution order", ylabel=metric.title)
    figure.legend(fontsize=8, ncols=6, frameon=False, loc="outside lower center")
    return figure


def _dots(axes: Any, places: Floats, chosen: Any, kind: Kind) -> None:
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return
    loud = kind.colour in ("fault", "setup")
    axes.scatter(
        rows, places[rows], s=_LARGE if loud else _SMALL, c=COLOURS[kind.colour], label=f"{kind.name} ({len(rows)})",
        marker=_MARKERS.get(kind.colour, "."), rasterized=len(places) > _MOST_POINTS, zorder=kind.rank + 1,
    )  # fmt: skip


def _mark_steps(axes: Any, pairs: Pairs) -> None:
    """A line where each step begins, and its number below, as many as can be read."""
    begins = np.flatnonzero(np.diff(pairs.step, prepend=pairs.step[0] - 1))
    for row in begins[1:]:
        axes.axvline(row, color="#e3e2dd", linewidth=0.8, zorder=0)
    shown = begins[:: max(1, len(begins) // 12)]
    axes.set_xticks(shown, [f"step {pairs.step[row]}" for row in shown], ha="left")


def strip_figure(pairs: Pairs) -> Figure | None:
    """Every site in execution order, a line per step and rank, by how far beyond its floor it is."""
    if not len(pairs):
        return None
    found = strip_places(pairs)
    figure, axes = _figure(10, min(12, 1.2 + 0.42 * len(found.lanes)))
    margin = pairs.margin[found.row]
    known = np.nan_to_num(margin, nan=0.0)
    with np.errstate(divide="ignore"):
        power = np.clip(np.floor(np.log10(known)) + 2, 1, len(_RAMP) - 1)
    ramp = np.array(_RAMP)[np.where(known > 0, np.where(known <= 1, 1, power), 0).astype(int)]
    colours = np.where(np.isnan(margin), COLOURS["unjudged"], ramp)
    high = np.where(known > 1, np.clip(0.3 + 0.12 * np.log10(np.maximum(known, 1)), 0, 0.85), 0.2)
    floor = -found.lane.astype(float) - 0.4
    axes.vlines(
        found.place, floor, floor + high, colors=list(colours), linewidth=found.width * 660,
        rasterized=len(found.row) > _MOST_POINTS,
    )  # fmt: skip
    axes.set_yticks(-np.arange(len(found.lanes)), [_name(one, 16) for one in found.lanes])
    begins = list(found.begins.items())
    ends = [*(start for _, start in begins[1:]), 1.0]
    wide = [one for one, end in zip(begins, ends, strict=True) if end - one[1] > 0.05]
    axes.set_xticks([start for _, start in wide], [name for name, _ in wide], ha="left")
    axes.set(xlim=(0, 1), ylim=(-len(found.lanes) + 0.5, 0.9), title="Where the runs part")
    _mark_origins(axes, pairs, found)
    steps = ("equal", "≤1", "1", "10", "100", "1e3", "1e4", "1e5")
    handles = [_patch(colour, words) for colour, words in zip(_RAMP, steps, strict=True)]
    title = "× noise floor"
    figure.legend(handles=handles, title=title, fontsize=7, loc="outside lower center", ncols=8)
    return figure


def _mark_origins(axes: Any, pairs: Pairs, found: StripPlaces) -> None:
    loud = pairs.kind.is_one_of(kinds.ORIGIN, kinds.SET_UP)[found.row]
    at = np.flatnonzero(loud)[:200]
    axes.scatter(
        found.place[at], -found.lane[at] + 0.55, marker="v", s=28, c=COLOURS["fault"], zorder=5
    )
    for one in at[:1]:
        row = found.row[one]
        words = f"{pairs.kind[row]}: {pairs.module[row] or '(model)'} / {pairs.operator[row]}"
        right = found.place[one] > 0.5
        axes.annotate(
            _name(words, 100), (found.place[one], -found.lane[one] + 0.6), (-8 if right else 8, 0),
            textcoords="offset points", ha="right" if right else "left", fontsize=8, color=COLOURS["fault"],
        )  # fmt: skip


def histogram_figure(detail: Detail, title: str) -> Figure | None:
    """Values of both tensors of one pair in common bins; None without whole tensors."""
    found = detail.histogram
    if found is None:
        return None
    figure, axes = _figure(6, 3.4)
    axes.stairs(found.reference, found.edges, fill=True, color="#d8d9d6", label="reference")
    axes.stairs(found.candidate, found.edges, color="#2f55c8", linestyle="--", label="candidate")
    axes.set_yscale("symlog", linthresh=1)
    axes.yaxis.set_major_formatter(_short)
    axes.set(title=_title(title), xlabel="value", ylabel="elements")
    axes.legend(frameon=False, fontsize=8)
    return figure


def heat_map_figure(detail: Detail, title: str) -> Figure | None:
    """Where in a pair the error sits, candidate - reference; None without whole tensors."""
    found = detail.heat_map
    if found is None:
        return None
    finite = np.abs(found.values[np.isfinite(found.values)])
    most = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    figure, axes = _figure(6, 4.2)
    axes.set_facecolor(COLOURS["unjudged"])
    image = axes.imshow(
        found.values, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
    )
    figure.colorbar(image, ax=axes, format=_short, label="candidate - reference")
    axes.set(title=_title(title), ylabel=found.row_label, xlabel=found.column_label)
    return figure


# -------------------------------------------------------------------------------------- recording


def series_figure(name: str, series: Sequence[Series]) -> Figure:
    """One number over steps, a curve per rank; what lies after the recorded steps is dashed."""
    figure, axes = _figure(6, 3.4)
    for one in series:
        style = "--" if one.is_later else "-"
        axes.plot(one.steps, one.values, style, marker=".", label=_name(one.rank + one.when, 60))
    return _finished(figure, axes, name, len(series) > 1)


def norms_figure(what: str, tensors: Sequence[TensorSeries]) -> Figure:
    """The norm of each parameter or gradient over steps; those of the largest norms have names."""
    figure, axes = _figure(8, 4)
    sizes = [np.nanmax(one.norm) if np.isfinite(one.norm).any() else -math.inf for one in tensors]
    largest = set(np.argsort(sizes)[::-1][:_MOST_CURVES].tolist())
    for place, one in enumerate(tensors):
        named = place in largest
        label = _name(f"{one.name} ({one.rank})", 48) if named else None
        style = {"label": label} if named else {"color": "#c4c5c2", "linewidth": 0.6}
        axes.plot(one.steps, one.norm, marker=".", zorder=2 if named else 1, **style)
    if any(size > 0 for size in sizes):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_short)
        axes.yaxis.set_minor_formatter(lambda value, place: "")
    return _finished(figure, axes, f"norm of each {what}", bool(tensors))


def _finished(figure: Figure, axes: Any, title: str, legend: bool) -> Figure:
    axes.set(title=_title(title), xlabel="step")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#e3e2dd")
    if legend:
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = importlib.import_module("matplotlib.figure").Figure((width, height))
    return figure, figure.subplots()


def _patch(colour: str, words: str) -> Any:
    return importlib.import_module("matplotlib.patches").Patch(color=colour, label=words)


def _short(value: float, place: int | None = None) -> str:
    """A number on an axis: 0.01, 10 or 1e5."""
    return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def _name(text: str, longest: int = 90) -> str:
    return shortened(visible(text), longest)


def _title(text: str) -> str:
    return textwrap.fill(_name(text, 120), 60)
