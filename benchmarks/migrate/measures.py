"""What is held against the bars: one repository migrated to one target, looked at from outside."""

from __future__ import annotations

import ast
import difflib
import json
import re
import tempfile
import tokenize
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import counter
import emitted
from pyflakes import checker

from lockstep_migrate.files.collection import collect
from lockstep_migrate.options import MigrationOptions
from lockstep_migrate.plan import FilePlan, Outcome, Plan, Row, rows_of
from lockstep_migrate.project import plan_collection

UNACCOUNTED = "unaccounted"


@dataclass
class Findings:
    """Counts, and the places of everything that misses a bar."""

    files: int = 0
    scripts: int = 0
    """Python files, notebooks and shell scripts that hold a site."""
    changed: int = 0
    failures: list[str] = field(default_factory=list)
    """Files that do not parse, as the tool listed them."""
    sites: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind of site and by what became of it."""
    unaccounted: list[str] = field(default_factory=list)
    parsed: int = 0
    broken: list[str] = field(default_factory=list)
    """Files that parsed before and do not after."""
    unread: list[str] = field(default_factory=list)
    """Files that do not parse and were not listed as such."""
    new_warnings: list[str] = field(default_factory=list)
    missing_names: list[str] = field(default_factory=list)
    second_run: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take the findings of another repository in."""
        for name, value in vars(other).items():
            own = getattr(self, name)
            if isinstance(own, Counter):
                own.update(value)
            else:
                setattr(self, name, own + value)


def measure(root: Path, target: str) -> Findings:
    """Migrate a repository and look at everything that came of it."""
    plan = plan_collection(collect([root]), MigrationOptions(target=target))
    found = Findings(failures=[f"{root.name}/{one.path}: {one.reason}" for one in plan.failures])
    planned = {str(file.path): file for file in plan.files}
    refused = {str(failure.path) for failure in plan.failures}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        found.files += 1
        if name not in refused:
            _look_at(path, f"{root.name}/{name}", planned.get(name), target, found)
    found.second_run += _changed_again(root, plan, target)
    return found


def _look_at(path: Path, name: str, file: FilePlan | None, target: str, found: Findings) -> None:
    before = path.read_bytes()
    after = file.migrated() if file else before
    rows = list(rows_of(file)) if file else []
    found.changed += before != after
    try:
        sites = _sites(path, _text(before))
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        found.unread.append(f"{name}: {error}")
        return
    found.scripts += bool(sites) and path.suffix in (".py", ".ipynb", ".sh")
    _account(name, sites, rows, found)
    if path.suffix == ".py":
        _check_code(name, _text(before), _text(after), target, found)
    elif path.suffix == ".ipynb":
        cells = zip(_cells(_text(before)), _cells(_text(after)), strict=True)
        found.parsed += 1
        found.broken += [
            f"{name}: cell {number}"
            for number, (old, new) in enumerate(cells)
            if _parses(old) and not _parses(new)
        ]
    if before != after:
        found.outside += [f"{name}{place}" for place in _outside(_text(before), _text(after), rows)]


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _sites(path: Path, text: str) -> list[counter.Site]:
    if path.suffix == ".py":
        ast.parse(text)
        return counter.python_sites(text)
    if path.suffix == ".ipynb":
        return counter.notebook_sites(text)
    if path.suffix in (".cu", ".cuh"):
        return [counter.Site(1, 1, "", "CUDA source file")]
    return counter.plain_sites(text)


def _account(
    name: str, sites: Iterable[counter.Site], rows: Sequence[Row], found: Findings
) -> None:
    """Find for each site the smallest row that covers it."""
    by_line: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        for line in range(row.line, row.end_line + 1):
            by_line[line].append(row)
    for site in sites:
        # Of a CUDA source file, which has to be written anew, any row will do.
        over = (
            list(rows)
            if not site.text
            else [row for row in by_line[site.line] if _covers(row, site)]
        )
        fate = min(over, key=_size).outcome.value if over else UNACCOUNTED
        found.sites[site.kind, fate] += 1
        if not over:
            found.unaccounted.append(f"{name}:{site.line}:{site.column}: {site.text} ({site.kind})")


def _covers(row: Row, site: counter.Site) -> bool:
    begins = (row.line, row.column) <= (site.line, site.column)
    return begins and (site.line, site.column + len(site.text)) <= (row.end_line, row.end_column)


def _size(row: Row) -> tuple[int, int]:
    return row.end_line - row.line, row.end_column - row.column


def _check_code(name: str, before: str, after: str, target: str, found: Findings) -> None:
    found.parsed += 1
    if before == after:
        return
    if not _parses(after):
        found.broken.append(name)
        return
    new = _warnings(after, name) - _warnings(before, name)
    found.new_warnings += [f"{name}: {text}" for text in sorted(new.elements())]
    found.missing_names += [f"{name}: {one}" for one in emitted.missing(before, after, target)]


def _parses(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "", "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _warnings(code: str, name: str) -> Counter[str]:
    """What pyflakes says but for `# noqa`, without line numbers; of an import the bound name, wherever it is from."""
    found, lines = checker.Checker(ast.parse(code), filename=name), code.splitlines()
    texts = (
        message.message % message.message_args
        for message in found.messages
        if "# noqa" not in lines[message.lineno - 1]
    )
    return Counter(
        re.sub(r"line \d+", "line N", re.sub(r"^'(?:\S+ as |\S*\.)?(\S+)' imp", r"'\1' imp", text))
        for text in texts
    )


def _cells(text: str) -> list[str]:
    document = json.loads(text)
    cells = document.get("cells") or [
        cell for sheet in document.get("worksheets", ()) for cell in sheet["cells"]
    ]
    return [
        "".join(cell.get("source", cell.get("input", "")))
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def _outside(before: str, after: str, rows: Iterable[Row]) -> Iterator[str]:
    """Lines that changed though no rewritten row holds them. Lines that were only added are none of the file's own."""
    allowed = {
        line
        for row in rows
        if row.outcome in (Outcome.REWRITTEN, Outcome.DIFFERS)
        for line in range(row.line, row.end_line + 1)
    }
    old, new = (re.split("(?<=\n)", text) for text in (before, after))
    for kind, start, end, _, _ in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if kind in ("replace", "delete"):
            yield from (f":{line}" for line in range(start + 1, end + 1) if line not in allowed)


def _changed_again(root: Path, plan: Plan, target: str) -> list[str]:
    """Files that a second run over the first one's output changes."""
    with tempfile.TemporaryDirectory(prefix="lockstep-migrate-") as name:
        again = Path(name) / root.name
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            _write(again, path.relative_to(root), path.read_bytes())
        for file in plan.files:
            _write(again, file.path, file.migrated())
        second = plan_collection(collect([again]), MigrationOptions(target=target))
        return [f"{root.name}/{file.path}" for file in second.files if file.changed]


def _write(folder: Path, name: Path | PurePosixPath, data: bytes) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
