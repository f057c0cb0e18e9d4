"""The table: from answers to Markdown."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep.core.finding import Instead
from lockstep.core.version import DISTRIBUTION, VERSION

Row = dict[str, Any]

_BEGIN, _END = "<!-- bench-faults begin -->", "<!-- bench-faults end -->"
_MISS_HEADER = ("case", "weight", "planted at", "score", "said", "reason")
_COLUMNS = ("exact", "module", "wrong place", "missed", "crashed")


def render(rows: Sequence[Row], *, seconds: float) -> str:
    """The whole report as Markdown.

    Faults that changed nothing at all (bitwise the same losses and parameters) are no faults; they are counted apart.
    """
    everything = rows
    rows = [row for row in everything if not _is_peer(row)]
    faults = [row for row in rows if row["group"] != "twin"]
    idle = sorted({row["case"] for row in faults if not row["changed"]})
    faults = [row for row in faults if row["changed"]]
    twins = [row for row in rows if row["group"] == "twin"]
    emulated = [row for row in twins if _is_device(row)]
    plain = [row for row in twins if not _is_device(row)]
    parts = [
        _heading(seconds),
        _faults_table(faults),
        _twins_table(plain),
        _kinds_table(faults),
        _explanations_table(faults),
        _emulated_table(emulated),
        _misses(faults),
        _alarms(plain),
        _peer_section(everything),
    ]
    if idle:
        parts.append(f"Without any effect, and not counted: {', '.join(idle)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def put_into(file: Path, text: str) -> None:
    """Replace what stands between the markers of a Markdown file; reasons written there by hand are kept."""
    page = file.read_text()
    text = "".join(_with_reason(line, _reasons(page)) for line in text.splitlines(keepends=True))
    put_between(file, text, (_BEGIN, _END))


def put_between(file: Path, text: str, markers: tuple[str, str]) -> None:
    """Replace what stands between two markers of a file."""
    begin, end = markers
    head, found, rest = file.read_text().partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{file}: lacks the markers {begin} and {end}")
    file.write_text(f"{head}{begin}\n{text}{end}{tail}")


def _reasons(page: str) -> dict[tuple[str, ...], str]:
    """The last column of the table of misses, by case and weight."""
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {tuple(line[:2]): line[-1] for line in cells if len(line) == len(_MISS_HEADER)}


def _with_reason(line: str, reasons: dict[tuple[str, ...], str]) -> str:
    cells = line.rstrip("\n").removeprefix("| ").removesuffix(" |").split(" | ")
    known = reasons.get(tuple(cells[:2]))
    if known is None or len(cells) != len(_MISS_HEADER) or cells[-1].strip():
        return line
    return "| " + " | ".join([*cells[:-1], known]) + " |\n"


def _is_peer(row: Row) -> bool:
    return row["rule"].startswith("peer: ")


def _is_device(row: Row) -> bool:
    name = row["case"].rpartition("/")[2]
    return name.startswith("emulated") and name != "emulated-reorder"


def _heading(seconds: float) -> str:
    others = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    packages = f"{DISTRIBUTION} {VERSION}, {others}"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"`make bench-faults`, {day}: {packages}, Python {platform.python_version()},"
        f" {platform.machine()}; {seconds / 60:.0f} minutes."
    )


def _methods(rows: Iterable[Row]) -> list[tuple[str, str]]:
    seen = {(row["weight"], row["rule"]): None for row in rows}
    return sorted(seen, key=lambda one: (one[1] != "best", list(seen).index(one)))


def markdown_table(header: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in line) + " |" for line in body]
    return "\n".join(lines)


def _share(count: int, total: int) -> str:
    return f"{count} ({count / total:.1%})" if total else "0"


def _faults_table(rows: Sequence[Row]) -> str:
    body = []
    for weight, rule in _methods(rows):
        mine = [row for row in rows if (row["weight"], row["rule"]) == (weight, rule)]
        counts = [sum(row["score"] == column for row in mine) for column in _COLUMNS]
        within = counts[0] + counts[1]
        more = sum(row.get("elsewhere", 0) > 0 for row in mine)
        body.append(
            (
                weight, rule, len(mine), _share(counts[0], len(mine)), _share(within, len(mine)),
                *counts[2:], more,
            )
        )  # fmt: skip
    header = (
        "weight", "rule", "faults", "named exactly", "exactly or within the module", "wrong place",
        "missed", "crashed", "other modules named too",
    )  # fmt: skip
    return "### Faults\n\n" + markdown_table(header, body) if body else ""


def _twins_table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    names = list(dict.fromkeys(row["case"].rpartition("/")[2] for row in rows))
    body = []
    for weight, rule in _methods(rows):
        mine = [row for row in rows if (row["weight"], row["rule"]) == (weight, rule)]
        alarms = [row for row in mine if row["score"] != "silent"]
        by_name = [
            sum(row["case"].rpartition("/")[2] == name for row in alarms) or "" for name in names
        ]
        body.append((weight, rule, len(mine), len(alarms), *by_name))
    return "### Sound twins\n\n" + markdown_table(
        ("weight", "rule", "twins", "false alarms", *names), body
    )


def _kinds_table(rows: Sequence[Row]) -> str:
    """Per kind: exact + module / all, for each method."""
    if not rows:
        return ""
    methods = _methods(rows)
    kinds: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row["group"], row["case"].rpartition("/")[2]].append(row)
    body = []
    for (group, kind), mine in kinds.items():
        cells = []
        for method in methods:
            scores = [row["score"] for row in mine if (row["weight"], row["rule"]) == method]
            exact, near = scores.count("exact"), scores.count("module")
            cells.append(f"{exact}" + (f" + {near}" if near else ""))
        count = len({row["case"] for row in mine})
        body.append((group, kind, count, *cells))
    header = ("group", "fault", "cases", *(f"{weight}, {rule}" for weight, rule in methods))
    note = "Named exactly, + within the right module.\n\n"
    return "### Per kind of fault\n\n" + note + markdown_table(header, body)


def _explanations_table(rows: Sequence[Row]) -> str:
    """Per kind: how many explanations of what the candidate computes instead are right, wrong and absent."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["weight"] == "tensors" and row["rule"] == "best" and "explained" in row:
            kinds[row["case"].rpartition("/")[2]].append(row["explained"])
    if not kinds:
        return ""
    answers = ("right", "wrong", "none")
    body = [(kind, *(mine.count(one) for one in answers)) for kind, mine in kinds.items()]
    every = [one for mine in kinds.values() for one in mine]
    body.append(("all", *(every.count(one) for one in answers)))
    tables = (markdown_table(("fault", *answers), body), _families_table(rows))
    return "### What it computes instead\n\n" + "\n\n".join(filter(None, tables))


def _families_table(rows: Sequence[Row]) -> str:
    """Per kind of explanation: how often it was said, rightly and wrongly; one that never hits earns no place."""
    families: dict[str, list[str]] = {one.value: [] for one in Instead}
    for row in rows:
        if row["weight"] == "tensors" and row["rule"] == "best" and row.get("family"):
            families[row["family"]].append(row["explained"])
    if not any(families.values()):
        return ""
    body = [(name, mine.count("right"), mine.count("wrong")) for name, mine in families.items()]
    return markdown_table(("kind of explanation", "right", "wrong"), body)


def _emulated_table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    body = []
    for weight, rule in _methods(rows):
        mine = [row for row in rows if (row["weight"], row["rule"]) == (weight, rule)]
        scores = [row["score"] for row in mine]
        body.append(
            (weight, rule, len(mine), scores.count("uniform"), scores.count("false alarm"),
             scores.count("missed"), scores.count("crashed"))
        )  # fmt: skip
    header = (
        "weight",
        "rule",
        "runs",
        "uniform change named",
        "a culprit named",
        "nothing said",
        "crashed",
    )
    return "### Emulated devices\n\n" + markdown_table(header, body)


def _planted(row: Row) -> str:
    target = row.get("target")
    if target is None:
        return ""
    place = target["place"]
    where = target["parameter"] or " ".join(filter(None, (place["module"], _short(place["op"]))))
    if not target["parameter"] and place["op"]:
        where += f" #{place['call']}"
    late = ", from step 1" if row["from_step"] else ""
    return f"{where or '(run)'}{late}"


def _short(op: str) -> str:
    return op.removeprefix("torch.nn.functional.").removeprefix("torch.")


def said_in_a_line(row: Row) -> str:
    """The first origin of an answer, or what else was said."""
    if "error" in row:
        return row["error"].strip().splitlines()[-1][:120].replace("|", "/")
    if not row["origins"]:
        return row["verdict"] + (f"; {row['not_compared'][0]}" if row["not_compared"] else "")
    first = row["origins"][0]
    margin = "" if first["margin"] is None else f", margin {first['margin']:.3g}"
    where = first["tensor"] if first["phase"] in ("init", "optimizer") else first["module"]
    return (
        f"{first['kind']}: step {first['step']} {first['phase']} {where or '(model)'}"
        f" {_short(first['op'])} #{first['call']} {first['role']}{margin}"
    )


def _misses(rows: Sequence[Row]) -> str:
    body = [
        (row["case"], row["weight"], _planted(row), row["score"], said_in_a_line(row), "")
        for row in rows
        if row["rule"] == "best" and row["score"] != "exact"
    ]
    return "### Not named exactly\n\n" + markdown_table(_MISS_HEADER, body) if body else ""


def _alarms(rows: Sequence[Row]) -> str:
    body = [
        (row["case"], row["weight"], row["score"], said_in_a_line(row))
        for row in rows
        if row["rule"] == "best" and row["score"] != "silent"
    ]
    header = ("twin", "weight", "score", "said")
    return "### False alarms\n\n" + markdown_table(header, body) if body else ""


def _peer_section(rows: Sequence[Row]) -> str:
    """Ours beside the peer's, over the cases that both have run to the end."""
    ours = {row["case"]: row for row in rows if (row["weight"], row["rule"]) == ("tensors", "best")}
    theirs = [row for row in rows if _is_peer(row)]
    if not theirs or not ours:
        return ""
    tool = next((row["tool"] for row in theirs if "tool" in row), "mindstudio-probe")
    both = [row for row in theirs if "tool" in row and _has_same_effect(row, ours.get(row["case"]))]
    cases = {row["case"] for row in both}
    left_out = sorted({row["case"] for row in theirs} - cases)
    methods: dict[str, list[Row]] = {"lockstep": [ours[name] for name in sorted(cases)]}
    for row in both:
        methods.setdefault(row["rule"], []).append(row)
    header = (
        "answer of", "faults", "in the planted module", "first elsewhere", "nothing flagged", "twins", "twins flagged",
        "emulated devices", "a row or place flagged",
    )  # fmt: skip
    text = f"### Beside {tool}\n\n" + markdown_table(
        header, [(name, *_peer_counts(mine)) for name, mine in methods.items()]
    )
    notes = [_peer_kinds(methods), _same_bits(both, ours)]
    if left_out:
        notes.append(
            "Not counted, because the peer did not run them to the end or the fault had no effect"
            f" there: {', '.join(left_out)}."
        )
    return "\n\n".join(part for part in (text, *notes) if part)


def _same_bits(theirs: Sequence[Row], ours: dict[str, Row]) -> str:
    cases = {row["case"]: row["trained"] for row in theirs}
    same = sum(ours[name]["trained"] == trained for name, trained in cases.items())
    return (
        f"In {same} of these {len(cases)} cases the training under the peer's hooks ended bitwise as"
        " under Lockstep's; in the others it ended with other bits, the reference too."
    )


def _has_same_effect(row: Row, mine: Row | None) -> bool:
    """Whether the fault or twin changed what was trained under both tools, or under neither."""
    return mine is not None and "trained" in mine and row["changed"] == mine["changed"]


def _peer_counts(rows: Sequence[Row]) -> tuple[object, ...]:
    faults = [row["score"] for row in rows if row["group"] != "twin" and row["changed"]]
    twins = [row["score"] for row in rows if row["group"] == "twin" and not _is_device(row)]
    emulated = [row["score"] for row in rows if row["group"] == "twin" and _is_device(row)]
    within = faults.count("exact") + faults.count("module")
    return (
        len(faults), _share(within, len(faults)), faults.count("wrong place"), faults.count("missed"),
        len(twins), twins.count("false alarm"), len(emulated), emulated.count("false alarm"),
    )  # fmt: skip


def _peer_kinds(methods: dict[str, list[Row]]) -> str:
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, rows in methods.items():
        for row in rows:
            if row["group"] != "twin" and row["changed"]:
                kinds[row["case"].rpartition("/")[2]][name].append(row["score"])
    body = []
    for kind, scores in sorted(kinds.items()):
        cells = [sum(score in ("exact", "module") for score in scores[name]) for name in methods]
        body.append((kind, len(scores["lockstep"]), *cells))
    note = "Faults whose module was named, or whose module has the first flagged row.\n\n"
    return note + markdown_table(("fault", "cases", *methods), body) if body else ""
