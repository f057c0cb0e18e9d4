"""Support lists in files: CSV and YAML, a row an operator; an error is reported with its line and column.

CSV begins with lines `# version: ...`, `# source: ...`, then a line of titles; YAML has `version`, `source` and
`operators`, a list of names or of mappings with the same titles. Of the titles only `operator` must be there.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from lockstep.errors import UsageError
from lockstep.plugin import SupportedOperators, SupportEntry
from lockstep_operators.support.dispatcher_names import dispatcher_name

TITLES = ("operator", "dtypes", "supported", "torch", "note", "source")
"""`dtypes` are parted by spaces; `torch` is the versions that a row holds for, as `2.1-2.12` or `2.9-`."""
HEADS = ("version", "source", "whole", "whole_dtypes", "lacks_dtypes")
"""What stands above the rows. `whole: no` says that what is not named may be there all the same, and `whole_dtypes: no`
that an operator may take dtypes that it is not listed with."""

# fmt: off
DTYPES = frozenset({
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "qint8", "quint8", "qint32", "quint4x2", "quint2x4",
})
# fmt: on
"""Those of torch 2.13."""

_MOST_BYTES = 1 << 24
_HEAD = re.compile(r"#\s*(\w+)\s*:\s*(.*)")
_VERSIONS = re.compile(r"(\d+)\.(\d+)(-(?:(\d+)\.(\d+))?)?")
_YES = {"": True, "yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    line: int
    column: int


_Row = dict[str, _Cell]


def list_from_file(
    path: Path, torch_version: tuple[int, int] | None, *, name: str = ""
) -> SupportedOperators:
    """Read a support list.

    torch_version: The torch whose operators are looked up; rows for others are passed over. None to take every row.
    name: What the list is called, the file's name by default.

    Raises UsageError if it cannot be read, holds no operator, or a row makes no sense.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(
                f"{path}: is larger than {_MOST_BYTES >> 20} MB, and no list of operators"
            )
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise UsageError(f"{path}: the list cannot be read ({reason})") from error
    is_yaml = path.suffix.lower() in (".yaml", ".yml")
    heads, rows = _in_yaml(path, text) if is_yaml else _in_csv(path, text)
    return _list(path, name or path.name, heads, rows, torch_version)


def _list(
    path: Path, name: str, heads: _Row, rows: list[_Row], version: tuple[int, int] | None
) -> SupportedOperators:
    if not rows:
        raise UsageError(f"{path}: the list names no operator")
    entries: dict[str, SupportEntry] = {}
    is_of_apis = False
    for row in rows:
        operator, entry, holds = _entry(path, row, version)
        is_of_apis |= row["operator"].text.startswith("torch.")
        if holds:
            entries[operator] = entry
    lacks = _dtypes(path, heads.get("lacks_dtypes")) or frozenset()
    source = heads["source"].text if "source" in heads else ""
    return SupportedOperators(
        name=name,
        version=heads["version"].text if "version" in heads else "",
        source=source or str(path),
        entries=entries,
        for_all_overloads=frozenset(entries)
        - {one.partition(".")[0] for one in entries if "." in one},
        is_whole=_yes(path, heads.get("whole")) and not is_of_apis,
        has_whole_dtypes=_yes(path, heads.get("whole_dtypes")),
        namespaces=frozenset({"aten", *(one.partition("::")[0] for one in entries)}),
        lacks_dtypes=dict.fromkeys(lacks, source),
    )


def _entry(
    path: Path, row: _Row, version: tuple[int, int] | None
) -> tuple[str, SupportEntry, bool]:
    cell = row["operator"]
    operator = dispatcher_name(cell.text)
    if operator is None:
        raise _wrong(
            path, cell, "operator", f"{cell.text!r} names no operator, as aten::add.Tensor does"
        )
    note = row["note"].text if "note" in row else ""
    entry = SupportEntry(_yes(path, row.get("supported")), _dtypes(path, row.get("dtypes")), note)
    return operator, entry, _holds_for(path, row.get("torch"), version)


def _yes(path: Path, cell: _Cell | None) -> bool:
    if cell is None:
        return True
    if cell.text.lower() not in _YES:
        raise _wrong(path, cell, "supported", f"{cell.text!r} is neither yes nor no")
    return _YES[cell.text.lower()]


def _dtypes(path: Path, cell: _Cell | None) -> frozenset[str] | None:
    if cell is None or not cell.text:
        return None
    named = [word.removeprefix("torch.") for word in re.split(r"[\s,;|]+", cell.text)]
    for word in named:
        if word not in DTYPES:
            raise _wrong(path, cell, "dtypes", f"{word!r} is no dtype of torch")
    return frozenset(named)


def _holds_for(path: Path, cell: _Cell | None, version: tuple[int, int] | None) -> bool:
    if cell is None or not cell.text:
        return True
    found = _VERSIONS.fullmatch(cell.text)
    if found is None:
        raise _wrong(path, cell, "torch", f"{cell.text!r} is no range of versions, as 2.1-2.12 is")
    first = (int(found[1]), int(found[2]))
    if found[3] is None:
        last = first
    else:
        last = (int(found[4]), int(found[5])) if found[4] else (1 << 30, 0)
    return version is None or first <= version <= last


def _in_csv(path: Path, text: str) -> tuple[_Row, list[_Row]]:
    heads: _Row = {}
    lines = text.splitlines()
    at = 0
    while at < len(lines) and (lines[at].startswith("#") or not lines[at].strip()):
        found = _HEAD.match(lines[at])
        if found is not None and found[1] in HEADS:
            heads[found[1]] = _Cell(found[2].strip(), at + 1, 1)
        at += 1
    reader = csv.reader(lines[at:])
    try:
        titles = [title.strip() for title in next(reader, [])]
        _check_titles(path, titles, at + 1)
        return heads, list(_csv_rows(path, reader, titles, at))
    except csv.Error as error:
        raise UsageError(f"{path}, line {at + reader.line_num}: is not CSV ({error})") from error


def _csv_rows(
    path: Path, reader: Iterator[list[str]], titles: list[str], above: int
) -> Iterator[_Row]:
    for cells in reader:
        line = above + reader.line_num  # type: ignore[attr-defined]  # of csv's own reader
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(titles):
            raise UsageError(
                f"{path}, line {line}, column {min(len(cells), len(titles)) + 1}: the row has {len(cells)} cells, and"
                f" there are {len(titles)} titles"
            )
        yield {
            title: _Cell(cell.strip(), line, column)
            for column, (title, cell) in enumerate(zip(titles, cells, strict=True), 1)
        }


def _check_titles(path: Path, titles: list[str], line: int) -> None:
    if not any(titles):
        raise UsageError(f"{path}: the list names no operator")
    for column, title in enumerate(titles, 1):
        if title not in TITLES:
            known = ", ".join(TITLES)
            raise UsageError(
                f"{path}, line {line}, column {column}: {title!r} is not a title of a list; there are {known}"
            )
    if "operator" not in titles:
        raise UsageError(f"{path}, line {line}: no title is `operator`")


def _in_yaml(path: Path, text: str) -> tuple[_Row, list[_Row]]:
    try:
        top = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise UsageError(f"{path}{at}: is not valid YAML") from error
    if top is None:
        raise UsageError(f"{path}: the list names no operator")
    fields = _fields(path, top, (*HEADS, "operators"))
    operators = fields.pop("operators", None)
    if not isinstance(operators, yaml.SequenceNode):
        raise UsageError(f"{path}: has no list `operators`")
    heads = {key: _scalar(path, key, node) for key, node in fields.items()}
    return heads, [_yaml_row(path, node) for node in operators.value]


def _yaml_row(path: Path, node: yaml.Node) -> _Row:
    if isinstance(node, yaml.ScalarNode):
        return {"operator": _scalar(path, "operator", node)}
    row = {key: _scalar(path, key, value) for key, value in _fields(path, node, TITLES).items()}
    if "operator" not in row:
        raise _wrong(path, _place(node), "", "a row without `operator`")
    return row


def _fields(path: Path, node: yaml.Node, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(path, _place(node), "", f"is no mapping of {', '.join(known)}")
    for key, _ in node.value:
        if key.value not in known:
            raise _wrong(path, _place(key), "", f"{key.value!r} is none of {', '.join(known)}")
    return {key.value: value for key, value in node.value}


def _scalar(path: Path, title: str, node: yaml.Node) -> _Cell:
    place = _place(node)
    if isinstance(node, yaml.SequenceNode) and title in ("dtypes", "lacks_dtypes"):
        return _Cell(" ".join(str(item.value) for item in node.value), place.line, place.column)
    if not isinstance(node, yaml.ScalarNode):
        raise _wrong(path, place, title, "is no plain value")
    return _Cell(str(node.value).strip(), place.line, place.column)


def _place(node: yaml.Node) -> _Cell:
    return _Cell("", node.start_mark.line + 1, node.start_mark.column + 1)


def _wrong(path: Path, cell: _Cell, title: str, what: str) -> UsageError:
    named = f" ({title})" if title else ""
    return UsageError(f"{path}, line {cell.line}, column {cell.column}{named}: {what}")
