"""A profile as text and as values for JSON: what to change first, then modules and operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep.terminal import (
    Column,
    Page,
    add_line,
    add_paragraph,
    add_table,
    counted,
    enveloped,
    terminal_width,
)
from lockstep_tune.bottlenecks import LEAST_SHARE, Bottleneck, bottlenecks
from lockstep_tune.module_tree import ModuleTime, module_tree, own_us
from lockstep_tune.places import short_place
from lockstep_tune.profile import Operator, Phase, Profile, time_text

_STARVED = 0.1
"""So large a share of the time without a core is said."""


def headline(profile: Profile, found: Sequence[Bottleneck]) -> str:
    """The answer in one sentence."""
    none = "NOT TOLD" if starved_words(profile) else "NOTHING TO GAIN"
    return f"{found[0].kind.value.upper() if found else none}: {found_words(profile, found)}"


def found_words(profile: Profile, found: Sequence[Bottleneck]) -> str:
    """The answer without its first word."""
    if not found:
        per_step = f"a step takes {time_text(profile.step_us)}"
        if starved_words(profile):
            return (
                f"the machine was too busy: for {profile.waiting:.0%} of the time a thread had no core; nothing stands"
                f" out in the rest of a step, which takes {time_text(profile.step_us)}"
            )
        return f"{per_step}, and nothing that Lockstep looks for costs {LEAST_SHARE:.0%} of it"
    first = found[0]
    return f"{first.what} at {short_place(first.place)}: up to {first.share:.0%} of a step"


def render(profile: Profile, *, limit: int | None, simple: bool) -> Page:
    """The answer, the advice, modules, and operators unless `simple`."""
    text = Page(terminal_width() or 100)
    found = bottlenecks(profile)
    add_paragraph(text, headline(profile, found), first="")
    add_paragraph(text, _how(profile))
    for number, one in enumerate(found, 1):
        add_line(text, "")
        add_line(text, f"{number}. {one.share:4.0%}  {one.kind.value}: {one.what}")
        add_paragraph(text, f"at {short_place(one.place)}: {one.evidence}", indent="         ")
        add_paragraph(text, f"change: {one.advice}", indent="         ")
    add_line(text, "")
    _add_modules(text, profile, limit=limit, simple=simple)
    if not simple:
        add_line(text, "")
        _add_operators(text, profile, limit=limit)
    return text


def _how(profile: Profile) -> str:
    words = f"{counted(len(profile.steps_us), 'step')} timed on {profile.device}"
    if profile.steps_us:
        words += f", {time_text(min(profile.steps_us))} to {time_text(max(profile.steps_us))}"
    if profile.plain_step_us:
        words += f"; a step takes {time_text(profile.plain_step_us)} without the profiler"
    starved = [starved_words(profile)] if starved_words(profile) else []
    return "; ".join([words, *starved, *profile.missing])


def starved_words(profile: Profile) -> str:
    """Say that other processes took the cores, "" where they did not."""
    if profile.waiting is None or profile.waiting < _STARVED:
        return ""
    return (
        f"the machine is busy: for {profile.waiting:.0%} of this time a thread of the training was ready"
        " and had no core, so times are too long; profile again when it is quiet"
    )


def _add_modules(text: Page, profile: Profile, *, limit: int | None, simple: bool) -> None:
    tree = [one for one in module_tree(profile) if not simple or one.depth <= 1]
    titles = ("module", "time", "share", *(phase.value for phase in Phase), "allocates", "GFLOP")
    columns = [Column(title, right=at > 0) for at, title in enumerate(titles)]
    rows = [_module_row(one, profile.step_us) for one in tree]
    add_table(text, columns, rows, limit=limit, width=terminal_width())


def _module_row(one: ModuleTime, step_us: float) -> list[object]:
    name = "  " * (one.depth - 1) + (one.path.rpartition(".")[2] if one.depth > 1 else one.path)
    phases = [
        time_text(one.phases_us[phase]) if one.phases_us.get(phase) else "" for phase in Phase
    ]
    return [
        name, time_text(one.total_us), f"{one.total_us / step_us:.1%}", *phases,
        f"{one.allocated_bytes / 1e6:.1f} MB", f"{one.flops / 1e9:.3g}" if one.flops else "",
    ]  # fmt: skip


def _add_operators(text: Page, profile: Profile, *, limit: int | None) -> None:
    titles = ["operator", "own", "share", "calls", "total", "Python", "device", "of peak"]
    titles += ["module", "at", "shapes"]
    columns = [Column(title, right=0 < at < 8) for at, title in enumerate(titles)]
    rows = [
        _operator_row(one, profile)
        for one in sorted(profile.operators, key=lambda one: -own_us(one))
    ]
    add_table(text, columns, rows, limit=limit, width=terminal_width())


def _operator_row(one: Operator, profile: Profile) -> list[object]:
    peak = share_of_peak(one, profile)
    return [
        one.name.removeprefix("aten::"), time_text(own_us(one)), f"{own_us(one) / profile.step_us:.1%}",
        f"{one.calls:.3g}",
        time_text(one.total_us), time_text(one.python_us) if one.python_us else "",
        time_text(one.self_device_us) if one.self_device_us else "",
        "" if peak is None else f"{peak:.0%}", one.module, short_place(one.source), one.shapes,
    ]  # fmt: skip


def share_of_peak(one: Operator, profile: Profile) -> float | None:
    """The FLOP/s of an operator as a share of the machine's measured peak; None where either is not known."""
    took_us = one.self_device_us or one.self_host_us
    if not (profile.peak_flops and one.flops and took_us > 0):
        return None
    return one.flops / (1e-6 * took_us) / profile.peak_flops


def as_values(profile: Profile) -> dict[str, Any]:
    """The same for JSON; times in microseconds of a step."""
    found = bottlenecks(profile)
    return enveloped(
        {
            "headline": headline(profile, found),
            "step_us": profile.step_us,
            "steps_us": profile.steps_us,
            "plain_step_us": profile.plain_step_us,
            "device": profile.device,
            "waiting": profile.waiting,
            "peak_flops": profile.peak_flops,
            "missing": profile.missing,
            "advice": [asdict(one) for one in found],
            "modules": [
                {
                    "module": one.path,
                    "total_us": one.total_us,
                    "phases_us": {phase.value: took for phase, took in one.phases_us.items()},
                    "allocated_bytes": one.allocated_bytes,
                    "flops": one.flops,
                }
                for one in module_tree(profile)
            ],
            "operators": [asdict(one) for one in profile.operators],
        }
    )
