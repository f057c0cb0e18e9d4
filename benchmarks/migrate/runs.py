"""Runs scripts of public repositories before and after migrating, each on devices that are not there (`stand_in.py`).

python benchmarks/migrate/runs.py --mirror clones --docs docs/migrate-benchmarks.md

`runs.yaml` names the scripts. A run after migrating is as good as the original on CUDA's stand-in if it ends like it,
says the same words, and places as much on the device; where it is not, the place where it stops has to be listed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import corpus
import report
import stand_in
import yaml

from lockstep_migrate.delivery.output import write_tree
from lockstep_migrate.files.collection import collect
from lockstep_migrate.options import MigrationOptions
from lockstep_migrate.plan import Outcome, Plan, rows_of
from lockstep_migrate.project import plan_collection

RUNS = Path(__file__).with_name("runs.yaml")
DEVICES = ("mps", "xpu", "npu")
FORMS = (*((device, device) for device in DEVICES), ("neutral", "mps"))
"""What scripts are migrated to, and where the result runs: the neutral form where there are the fewest names."""

LIMIT_S = 60
_LOADED = ("numpy", "pytest", "torch._dynamo", "matplotlib.pyplot", "scipy.stats", "tqdm")
_LOADED_IF_THERE = ("gymnasium", "pandas", "sklearn", "tensorboard", "torch.utils.tensorboard")
"""What scripts import, loaded once before they fork."""
_BEGIN, _END = "<!-- runs begin -->", "<!-- runs end -->"


@dataclass(frozen=True)
class Ending:
    """How a run ended: its exit code, what it said without its numbers, its error, how much it placed on the device."""

    code: int
    words: str
    error: str
    placed: int


def run(folder: Path, device: str, command: str) -> Ending:
    """Run a script in a process of its own that has everything loaded already."""
    with tempfile.TemporaryDirectory(prefix="lockstep-run-") as name:
        out, error = Path(name, "out"), Path(name, "error")
        child = os.fork()
        if not child:
            _become(folder, device, command, out, error)
        code = _waited(child)
        told = error.read_text(errors="replace")
        placed = re.findall(rf"{stand_in.PLACED} (\d+)", told)
        words = re.sub(
            rf"\(?\b(?:{device}|cuda)(:\d+)?\b\)?|[\d.e+-]+|\S*/\S*",
            "",
            out.read_text(errors="replace"),
        )
        said = f"{out.read_text(errors='replace')}\n{told}"
        return Ending(code, "".join(words.split()), said, int(placed[-1]) if placed else 0)


def _become(folder: Path, device: str, command: str, out: Path, error: Path) -> None:
    """Be the script's process, and end with it."""
    for number, file in ((1, out), (2, error)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    code = 1
    try:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        sys.argv = ["", device, *shlex.split(command)]
        stand_in.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else bool(ended.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


def _waited(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@dataclass(frozen=True)
class Result:
    """One script in one form: what became of it, in a word and in words."""

    repository: str
    command: str
    form: str
    fate: str
    why: str = ""


def results(mirror: Path, scratch: Path, only: Sequence[str]) -> Iterator[Result]:
    """Every script in every form."""
    for entry in yaml.safe_load(RUNS.read_text())["runs"]:
        name: str = entry["repository"]
        if only and name not in only:
            continue
        wanted = corpus.Repository(name, entry["commit"], tuple(entry.get("paths", ())))
        root = scratch / wanted.folder
        corpus.gather([wanted], mirror, scratch, every_file=True)
        first, again = (_originals(root, entry["commands"], number) for number in (1, 2))
        before = {command: _common(one, again[command]) for command, one in first.items()}
        for target, device in FORMS:
            plan, after = _migrated(root, target)
            for command, original in before.items():
                yield _compared(
                    name,
                    command,
                    f"{target} on {device}",
                    original,
                    run(after, device, command),
                    plan,
                )
            shutil.rmtree(after)
        shutil.rmtree(root)


def _originals(root: Path, commands: Sequence[str], number: int) -> dict[str, Ending]:
    """How the scripts end as they are, in a copy of their own."""
    copy = Path(shutil.copytree(root, root.with_name(f"{root.name}-{number}")))
    endings = {command: run(copy, "cuda", command) for command in commands}
    shutil.rmtree(copy)
    return endings


def _common(first: Ending, again: Ending) -> Ending:
    """What holds of a script each time: one that places another number of tensors each time places some."""
    same = first.placed == again.placed
    return first if same else replace(first, placed=min(first.placed, again.placed, 1))


def _migrated(root: Path, target: str) -> tuple[Plan, Path]:
    collection = collect([root])
    plan = plan_collection(collection, MigrationOptions(target))
    after = root.with_name(f"{root.name}-{target}")
    return plan, write_tree(plan, collection, after, force=True)


def _compared(
    name: str, command: str, form: str, original: Ending, after: Ending, plan: Plan
) -> Result:
    if original.code:
        return Result(name, command, form, "not run", f"{original.code}: {_last(original.error)}")
    if after.code:
        listed = _listed(after.error, plan)
        return Result(
            name, command, form, "listed" if listed else "MISSED", listed or _last(after.error)
        )
    if after.words != original.words:
        return Result(name, command, form, "MISSED", "says something else")
    if after.placed < original.placed:
        return Result(
            name,
            command,
            form,
            "MISSED",
            f"places {after.placed} of {original.placed} on the device",
        )
    return Result(name, command, form, "same")


def _listed(error: str, plan: Plan) -> str:
    """The reason of a listed place on a line that the error went through, or in a file of these about what it says."""
    lines, last = {line.strip() for line in error.splitlines()}, _last(error)
    for file in plan.files:
        text = file.source.text.splitlines()
        reached = str(file.path) in error
        for row in rows_of(file):
            if row.outcome not in (Outcome.LISTED, Outcome.DIFFERS):
                continue
            said = ("float64" in last and "double precision" in row.reason) or (
                "with CUDA" in last and "cuda" in row.before
            )
            if text[row.line - 1].strip() in lines or (reached and said):
                return f"{row.file}:{row.line} {row.before}: {row.reason}"
    return ""


def _last(error: str) -> str:
    lines = [line for line in error.splitlines() if line.strip() and stand_in.PLACED not in line]
    faults = [line for line in lines if re.match(r"(E +)?\w+(Error|Exception)\b", line)]
    return (faults or lines or ["nothing"])[-1].strip()[:160]


def table(found: Sequence[Result], seconds: float) -> str:
    """The counts by repository, and every run that is not the same."""
    forms = [f"{target} on {device}" for target, device in FORMS]
    ran = {(one.repository, one.command) for one in found if one.fate != "not run"}
    day = time.strftime("%Y-%m-%d", time.gmtime())
    repositories = len({name for name, _ in ran})
    lines = [
        f"{day}: {len(ran)} scripts of {repositories} repositories, {seconds / 60:.0f} minutes.",
        "",
        f"| repository | scripts | {' | '.join(forms)} |",
        "|---|---|" + "---|" * len(forms),
    ]
    for name in dict.fromkeys(one.repository for one in found):
        own = [one for one in found if one.repository == name and one.fate != "not run"]
        cells = (_cell([one for one in own if one.form == form]) for form in forms)
        lines.append(f"| {name} | {len({one.command for one in own})} | {' | '.join(cells)} |")
    rest = [one for one in found if one.fate in ("listed", "MISSED")]
    lines += [
        "",
        *(
            f"- {one.fate}: {one.repository}, `{one.command}`, {one.form}: {one.why}"
            for one in rest
        ),
    ]
    return "\n".join(lines) + "\n"


def _cell(runs: Sequence[Result]) -> str:
    fates = [one.fate for one in runs]
    return ", ".join(f"{fates.count(fate)} {fate}" for fate in dict.fromkeys(fates))


def main() -> int:
    """Run everything, print, keep; 1 where a run is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mirror", type=Path, required=True, help="folder of clones")
    parser.add_argument("--only", action="append", default=[], help="a repository [all]")
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown page")
    options = parser.parse_args()
    for name in _LOADED:
        importlib.import_module(name)
    for name in _LOADED_IF_THERE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    started, found = time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name:
        for one in results(options.mirror, Path(name), options.only):
            found.append(one)
            print(f"{one.fate:8} {one.repository} {one.form}: {one.command} {one.why}", flush=True)
    page = table(found, time.perf_counter() - started)
    print(page)
    if options.docs:
        report.put_into(options.docs, page, _BEGIN, _END)
    return 1 if any(one.fate == "MISSED" for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
