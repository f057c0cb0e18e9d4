"""A plan as a unified diff, made from its edits: no search for what differs, and never more than what does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.wings.migrate.plan import Edit, FilePlan, NewFile, Plan

_CONTEXT = 3
_NEEDS_QUOTES = re.compile(r'[\x00-\x1f"\\\x7f]')


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines `old[old_start:old_end]` become `new[new_start:new_end]`; all counts from 0."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def unified_diff(plan: Plan) -> Iterator[str]:
    """The lines of a diff that `patch -p1` and `git apply` take, with their line ends.

    Bytes that are no UTF-8 come as lone surrogates: write the lines as UTF-8 with `errors="surrogateescape"` and
    without translating line ends, and the bytes are those of the file.
    """
    for file in plan.files:
        if file.changed:
            yield from _file_diff(file)
    for new in plan.new_files:
        yield from _new_file_diff(new)


def _file_diff(file: FilePlan) -> Iterator[str]:
    old, new = _lines(file.source.data), _lines(file.migrated())
    yield _header("---", f"a/{file.path}")
    yield _header("+++", f"b/{file.path}")
    blocks = [_trimmed(block, old, new) for block in _blocks(file.source.text, file.edits)]
    for group in _groups([block for block in blocks if block]):
        yield from _hunk(group, old, new)


def _new_file_diff(new: NewFile) -> Iterator[str]:
    mode = "100755" if new.executable else "100644"
    yield f"diff --git {_quoted(f'a/{new.path}')} {_quoted(f'b/{new.path}')}\nnew file mode {mode}\n"
    lines = _lines(new.data)
    if lines:
        yield "--- /dev/null\n"
        yield _header("+++", f"b/{new.path}")
        yield f"@@ -0,0 +{_range(0, len(lines))} @@\n"
        yield from _marked("+", lines)


def _lines(data: bytes) -> list[str]:
    """Lines as patch knows them, which end at a line feed and at nothing else."""
    text = data.decode("utf-8", "surrogateescape")
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _blocks(text: str, edits: Sequence[Edit]) -> Iterator[_Block]:
    """The lines that edits touch, before and after."""
    line, position, shift, pending = 0, 0, 0, None
    for edit in edits:
        line += text.count("\n", position, edit.span.start)
        position = edit.span.start
        # The rest of the last line belongs to it: it may have moved to another line.
        removed = text.count("\n", edit.span.start, edit.span.end)
        first, last = line, line + removed + 1
        change = edit.text.count("\n") - removed
        if pending and first < pending.old_end:
            new_end = max(last, pending.old_end) + shift + change
            pending = _Block(
                pending.old_start, max(last, pending.old_end), pending.new_start, new_end
            )
        else:
            if pending:
                yield pending
            pending = _Block(first, last, first + shift, last + shift + change)
        shift += change
    if pending:
        yield pending


def _trimmed(block: _Block, old: Sequence[str], new: Sequence[str]) -> _Block | None:
    """A block without the lines at its ends that do not change; nothing where none does."""
    old_start, new_start = block.old_start, block.new_start
    old_end, new_end = min(block.old_end, len(old)), min(block.new_end, len(new))
    while old_start < old_end and new_start < new_end and old[old_start] == new[new_start]:
        old_start, new_start = old_start + 1, new_start + 1
    while old_start < old_end and new_start < new_end and old[old_end - 1] == new[new_end - 1]:
        old_end, new_end = old_end - 1, new_end - 1
    same = old_start >= old_end and new_start >= new_end
    return None if same else _Block(old_start, old_end, new_start, new_end)


def _groups(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Blocks whose context would touch share a hunk."""
    group: list[_Block] = []
    for block in blocks:
        if group and block.old_start - group[-1].old_end > 2 * _CONTEXT:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _hunk(group: Sequence[_Block], old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    first, last = group[0], group[-1]
    before = min(_CONTEXT, first.old_start)
    after = min(_CONTEXT, len(old) - last.old_end)
    old_start, new_start = first.old_start - before, first.new_start - before
    old_range = _range(old_start, last.old_end + after - old_start)
    new_range = _range(new_start, last.new_end + after - new_start)
    yield f"@@ -{old_range} +{new_range} @@\n"
    position = old_start
    for block in group:
        yield from _marked(" ", old[position : block.old_start])
        yield from _marked("-", old[block.old_start : block.old_end])
        yield from _marked("+", new[block.new_start : block.new_end])
        position = block.old_end
    yield from _marked(" ", old[position : last.old_end + after])


def _range(start: int, count: int) -> str:
    # An empty range is named by the line before it.
    begin = start + 1 if count else start
    return str(begin) if count == 1 else f"{begin},{count}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        end = "" if line.endswith("\n") else "\n\\ No newline at end of file\n"
        yield f"{mark}{line}{end}"


def _header(mark: str, path: str) -> str:
    # Behind a name with a space, a tab tells patch where it ends.
    end = "\t\n" if " " in path else "\n"
    return f"{mark} {_quoted(path)}{end}"


def _quoted(path: str) -> str:
    """A path as git writes it: in quotes where it holds what would break the line."""
    if not _NEEDS_QUOTES.search(path):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\{ord(match[0]):03o}", escaped) + '"'
