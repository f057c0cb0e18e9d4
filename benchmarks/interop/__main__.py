"""`make bench-interop`: dumps that mindstudio-probe makes of trainings with planted faults, read as they are.

Its package comes from PyPI into an environment of its own. Each fault is looked for by `lockstep compare` on the two
dumps, and by the peer's own `msprobe compare`: right is who says the operator first that computes wrongly.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import reading
from environment import PACKAGE, VERSION, installed

from lockstep.comparison import compare_recordings
from lockstep_interop_names.dumps.api_names import operator_name

MODELS = ("GPT-2", "BERT", "ResNet")
WORKER = Path(__file__).with_name("peer_dumps.py")


@dataclass(frozen=True)
class Row:
    """One fault, or a sound twin where nothing was planted: what was said first by each."""

    model: str
    planted: str
    kind: str
    ours: str
    is_ours_right: bool
    errors: str
    is_error_right: bool
    warnings: str
    is_warning_right: bool
    seconds: float


def main() -> None:
    """Make the dumps where they are not there, compare each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, default=Path(".venv-peer"))
    parser.add_argument(
        "--dumps", type=Path, help="Use the dumps of an earlier run, or keep them here."
    )
    parser.add_argument("--docs", type=Path, help="Write the table into this page.")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-interop-") as name:
        directory = chosen.dumps or Path(name)
        rows = [
            row for model in MODELS for row in rows_of(model, directory / model, chosen.environment)
        ]
    text = table(rows)
    print(text)
    if chosen.docs is not None:
        put_into(chosen.docs, text, "bench-interop")
    with tempfile.TemporaryDirectory(prefix="lockstep-reading-") as name:
        text = reading.table(Path(name))
    print(text)
    if chosen.docs is not None:
        put_into(chosen.docs, text, "bench-reading")


def rows_of(model: str, directory: Path, environment: Path) -> list[Row]:
    """What was said of each dump of a model."""
    answers = directory / "flagged.json"
    if not answers.exists():
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [str(installed(environment)), str(WORKER), model, str(directory)], check=True
        )
    flagged = json.loads(answers.read_text())
    return [row_of(model, directory, label, said) for label, said in flagged.items()]


def row_of(model: str, directory: Path, label: str, said: dict[str, str]) -> Row:
    """What was said of one dump beside the sound one."""
    if said["table"] != "True":
        log = directory / f"{label}.compared.log"
        raise RuntimeError(f"the peer's comparison wrote no table: {log}")
    file = directory / label / "planted.json"
    planted: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if not planted and label != "threads":
        raise RuntimeError(f"nothing was planted: {directory / f'{label}.log'}")
    start = time.perf_counter()
    found = compare_recordings(directory / "sound", directory / label)
    seconds = time.perf_counter() - start
    origin = found.origins[0] if found.origins else None
    ours = f"{origin.module} / {origin.op}" if origin else ""
    if not planted:
        silent = not found.origins and not found.uniform
        errors, warnings = said["error"], said["warning"]
        return Row(
            model,
            "nothing (other threads)",
            "",
            ours,
            silent,
            errors,
            not errors,
            warnings,
            not warnings,
            seconds,
        )
    kind, _, name = planted["operator"].partition(".")
    right = origin is not None and (origin.module, origin.op) == (
        planted["module"],
        operator_name(kind, name),
    )
    api = f"{planted['operator']}.{planted['call']}"
    named = [said[word].startswith(f"{api}.forward.output") for word in ("error", "warning")]
    return Row(
        model, f"{planted['module']}: {api}", planted["kind"], ours, right, said["error"], named[0], said["warning"],
        named[1], seconds,
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """The rows as Markdown, and their sums."""
    faults, twins = [row for row in rows if row.kind], [row for row in rows if not row.kind]
    lines = [
        f"Dumps of {PACKAGE} {VERSION}, level mix, task tensor; one step of each model.", "",
        "| | lockstep compare | msprobe compare, first `error` | first `error` or `warning` |", "|---|---|---|---|",
        f"| operator named, of {len(faults)} faults {_sums(faults)}",
        f"| silent, of {len(twins)} sound twins {_sums(twins)}", "",
        "| model | planted | kind | lockstep | error | error or warning |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for one in rows:
        cells = (
            _cell(one.ours, right=one.is_ours_right), _cell(one.errors, right=one.is_error_right),
            _cell(one.warnings, right=one.is_warning_right),
        )  # fmt: skip
        lines.append(f"| {one.model} | {one.planted} | {one.kind} | {' | '.join(cells)} |")
    mean = sum(one.seconds for one in rows) / max(1, len(rows))
    return "\n".join([*lines, "", f"`lockstep compare` took {mean:.1f} s on average."])


def _sums(rows: list[Row]) -> str:
    right = ((one.is_ours_right, one.is_error_right, one.is_warning_right) for one in rows)
    return "".join(f"| {sum(column)} " for column in zip(*right, strict=True)) + "|"


def _cell(said: str, *, right: bool) -> str:
    if right:
        return "yes"
    return said or "nothing"


def put_into(page: Path, text: str, mark: str) -> None:
    """Replace what stands between the marks of a page."""
    start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    before, _, rest = page.read_text().partition(start)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{start}{text}\n{end}{after}")


if __name__ == "__main__":
    main()
