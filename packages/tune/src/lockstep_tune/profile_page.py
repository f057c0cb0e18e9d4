"""The page of a profile: the advice, the step as a strip, and modules, operators and their times to sort and filter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lockstep.page import (  # fmt: skip
    Block,
    Card,
    Code,
    Column,
    Facts,
    Grid,
    Kind,
    Metric,
    Page,
    Rows,
    Scatter,
    Selected,
    Sentences,
    Strip,
    Subject,
    Table,
    TableColumn,
    TextColumn,
    Tree,
    Verdict,
    Work,
)
from lockstep_tune.bottlenecks import Bottleneck, bottlenecks
from lockstep_tune.module_tree import module_tree, own_us, place_of
from lockstep_tune.places import short_place
from lockstep_tune.profile import Operator, Phase, Profile, time_text
from lockstep_tune.profile_screen import found_words, headline, starved_words

KINDS = (
    Kind("advice", "origin", "fault", 5),
    Kind("forward", "better", "setup", 4),
    Kind("backward", "inherited", "noise", 3),
    Kind("optimizer", "uniform", "agree", 2),
    Kind("data", "data", "none", 1),
)
"""Operators by phase; those at a line that advice names stand out."""

_NUMBERS = ("own_us", "share", "total_us", "python_us", "device_us", "calls", "allocated", "flops")
_TABLE = (
    TableColumn("kind", "kind", "kind"),
    TableColumn("module / operator", "module", "site"),
    TableColumn("own us", "own_us", "number"),
    TableColumn("share, %", "share", "number"),
    TableColumn("total us", "total_us", "number"),
    TableColumn("calls", "calls", "number"),
    TableColumn("at", "source"),
    TableColumn("Python us", "python_us", "number", shown=False),
    TableColumn("device us", "device_us", "number", shown=False),
    TableColumn("bytes", "allocated", "number", shown=False),
    TableColumn("FLOP", "flops", "number", shown=False),
    TableColumn("shapes", "shape", shown=False),
    TableColumn("dtypes", "dtype", shown=False),
)


def profile_page(profile: Profile) -> Page:
    """Compose the page of one rank's profile."""
    found = bottlenecks(profile)
    name = Path(profile.name).name
    work = Work(
        Tree("Modules", empty="The trace tells no modules."),
        Scatter(
            "Times over the step", tuple(Metric(one, one.replace("_us", " us")) for one in _NUMBERS)
        ),
        Table("Operators", _TABLE, empty="The trace holds no operator."),
        Selected("Selected operator"),
    )
    advice = [block for number, one in enumerate(found, 1) for block in _advice(number, one)]
    nothing = Sentences((), empty=f"{headline(profile, found)}.")
    return Page(
        title=f"{headline(profile, found)} · Lockstep",
        areas=(
            _verdict(profile, found),
            Card("What to change, largest gain first", advice or [nothing]),
            Strip("The step in order of time", empty="The trace holds no operator."),
            Card("Time by module", (_modules(profile),)),
            work,
        ),
        subjects=(Subject("profile", name),),
        about=f"{profile.device}, {len(profile.steps_us)} steps timed",
        rows=_rows(profile, found),
    )


def _verdict(profile: Profile, found: Sequence[Bottleneck]) -> Verdict:
    facts = [("One step", time_text(profile.step_us))]
    if profile.plain_step_us:
        facts.append(("Without the profiler", time_text(profile.plain_step_us)))
    if starved_words(profile):
        facts.append(("Machine", starved_words(profile)))
    facts += [("Not known", sentence) for sentence in profile.missing]
    none = ("unjudged", "unjudged") if starved_words(profile) else ("agree", "better")
    return Verdict(
        *(("setup", "origin") if found else none), "Profile",
        f"{len(profile.operators)} operators", found_words(profile, found),
        found[0].evidence if found else "", facts,
        excerpts=[one for one in (_excerpt(found[0].place),) if one] if found else (),
    )  # fmt: skip


def _advice(number: int, one: Bottleneck) -> list[Block]:
    title = f"{number}. {one.what}"
    facts = [
        ("Class", one.kind.value),
        ("Gain, at most", f"{time_text(one.cost_us)} of a step, {one.share:.0%}"),
        ("Where", short_place(one.place)),
        ("Seen by", one.evidence),
        ("Change", one.advice),
    ]
    code = _excerpt(one.place) if number > 1 else None
    return [Facts(facts, title=title), *([code] if code else [])]


_PLACE = re.compile(r"(.+):(\d+)$")


def _excerpt(place: str, around: int = 2) -> Code | None:
    """The lines of a script around a place, None where the file is not there."""
    found = _PLACE.match(place)
    if found is None:
        return None
    try:
        lines = Path(found[1]).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    at = int(found[2])
    numbers = range(max(at - around, 1), min(at + around, len(lines)) + 1)
    return Code(short_place(place), [(one, lines[one - 1]) for one in numbers], (at,))


def _modules(profile: Profile) -> Grid:
    titles = ("module", "time", "share", *(phase.value for phase in Phase), "MB", "GFLOP")
    rows = [
        (
            "\u2003" * max(one.depth - 1, 0) + one.path, time_text(one.total_us),
            f"{one.total_us / profile.step_us:.1%}",
            *(time_text(one.phases_us[phase]) if one.phases_us.get(phase) else None for phase in Phase),
            one.allocated_bytes / 1e6, one.flops / 1e9,
        )
        for one in module_tree(profile)
    ]  # fmt: skip
    return Grid(titles, rows)


def _rows(profile: Profile, found: Sequence[Bottleneck]) -> Rows:
    operators = sorted(profile.operators, key=lambda one: one.order)
    named = {one.place for one in found}
    texts = {
        "kind": ["advice" if one.source in named else one.phase.value for one in operators],
        "phase": [one.phase.value for one in operators],
        "module": [place_of(one) for one in operators],
        "operator": [one.name for one in operators],
        "role": [one.parent for one in operators],
        "tensor": [one.shapes for one in operators],
        "source": [short_place(one.source) for one in operators],
        "shape": [one.shapes for one in operators],
        "dtype": [one.dtypes for one in operators],
        "reason": ["" for _ in operators],
        "rank": ["" for _ in operators],
    }
    columns: dict[str, Column] = {name: _text(values) for name, values in texts.items()}
    for name in ("step", "call", "index"):
        columns[name] = np.zeros(len(operators), dtype=np.int32)
    for name in _NUMBERS:
        values = [_number(one, name, profile.step_us) for one in operators]
        columns[name] = np.array(values, dtype=np.float64)
    slowest = max(range(len(operators)), key=lambda at: own_us(operators[at]), default=-1)
    return Rows(columns, KINDS, selected=slowest, value="own_us", unit="us", scaled=False)


def _number(one: Operator, name: str, step_us: float) -> float:
    return {
        "own_us": own_us(one),
        "share": 100 * own_us(one) / step_us,
        "total_us": one.total_us,
        "python_us": one.python_us,
        "device_us": one.device_us,
        "calls": one.calls,
        "allocated": one.allocated_bytes,
        "flops": one.flops,
    }[name]


def _text(values: Sequence[str]) -> TextColumn:
    names = list(dict.fromkeys(values))
    numbers = {name: at for at, name in enumerate(names)}
    return TextColumn(np.array([numbers[one] for one in values], dtype=np.int32), names)
