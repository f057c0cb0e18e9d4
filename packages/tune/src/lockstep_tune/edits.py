"""Write the edit that keeps tuned settings in a script: a diff where a call takes them, else a sentence."""

from __future__ import annotations

import ast
import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep_tune.rewrites import Rewrite
from lockstep_tune.settings import Settings, Value
from lockstep_tune.tuned_run import Use


def edits(settings: Settings, uses: Sequence[Use]) -> tuple[str, list[str]]:
    """Return a unified diff of the scripts, and sentences for what no call takes.

    settings: What is to be had for good.
    uses: Where the training makes loaders, optimizers and so on.
    """
    by_file: dict[str, list[tuple[int, str, dict[str, str]]]] = defaultdict(list)
    sentences = []
    placed = set()
    for use in uses:
        keywords = _keywords(settings.knobs, use)
        file, _, line = use.place.rpartition(":")
        if keywords and line.isdigit():
            by_file[file].append((int(line), use.name, keywords))
            placed |= _KNOBS_OF.get(use.knob, set())
    files = dict.fromkeys([*by_file, *(_absolute(one) for one in settings.rewrites)])
    diff = "".join(
        _diff(
            Path(file),
            by_file.get(file, []),
            [one for one in settings.rewrites if _absolute(one) == file],
        )
        for file in files
    )
    for name, value in settings.knobs.items():
        if name not in placed or not diff:
            sentences.append(_sentence(name, value, uses))
    sentences += [
        f"{one.name}: {one.edit or 'as it is in your file of knobs'}" for one in settings.own
    ]
    return diff, sentences


_KNOBS_OF = {
    "workers": {"workers", "prefetch", "pin"},
    "optimizer": {"optimizer"},
    "bucket": {"bucket"},
    "loss_scale": {"loss_scale"},
}


def _keywords(knobs: Mapping[str, Value], use: Use) -> dict[str, str]:
    """The arguments that a call gets, as source."""
    if use.knob == "workers":
        names = {"workers": "num_workers", "prefetch": "prefetch_factor", "pin": "pin_memory"}
        return {word: repr(knobs[one]) for one, word in names.items() if one in knobs}
    if use.knob == "optimizer" and "optimizer" in knobs:
        wanted = knobs["optimizer"]
        given = {"foreach": wanted == "foreach", "fused": wanted == "fused"}
        changed = {one: str(value) for one, value in given.items() if one in use.given}
        return {
            one: value
            for one, value in changed.items()
            if value == "True" or use.given[one] is not None
        }
    if use.knob == "bucket" and "bucket" in knobs:
        return {"bucket_cap_mb": repr(knobs["bucket"]), "gradient_as_bucket_view": "True"}
    if use.knob == "loss_scale" and isinstance(knobs.get("loss_scale"), int):
        return {"init_scale": f"{knobs['loss_scale']}.0", "growth_interval": "2**31 - 1"}
    return {}


def _sentence(name: str, value: Value, uses: Sequence[Use]) -> str:
    places = [use.place for use in uses if use.knob == name]
    at = f" ({', '.join(places[:3])})" if places else ""
    return {
        "threads": f"threads: torch.set_num_threads({value}) at the start, or OMP_NUM_THREADS={value}",
        "affinity": f"affinity: start it with OMP_PROC_BIND={value} OMP_PLACES=cores",
        "checkpointing": f"checkpointing: call the function itself instead of checkpoint(...){at}",
        "channels_last": "channels_last: model = model.to(memory_format=torch.channels_last)",
        "compile": f"compile: model.compile(mode={value!r}) before the first step",
        "float32_matmul": f"float32_matmul: torch.set_float32_matmul_precision({value!r})",
        "autocast": f"autocast: run the model's forward under torch.autocast(..., dtype=torch.{value})",
    }.get(name, f"{name}={value}: there is no short edit; go on with lockstep run-tuned")


def _absolute(one: Rewrite) -> str:
    return str(Path(one.file).absolute())


def _diff(
    file: Path, wanted: Sequence[tuple[int, str, dict[str, str]]], rewrites: Sequence[Rewrite]
) -> str:
    """The diff of one file; nothing where it cannot be read, or no such call is found in it."""
    try:
        source = file.read_bytes()
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return ""
    changes: list[tuple[int, int, bytes]] = []
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for one in rewrites:
        end = starts[one.line - 1 + len(one.before)]
        changes.append((starts[one.line - 1], end, "".join(one.after).encode()))
    rewritten = [(start, end) for start, end, _ in changes]
    for line_number, name, keywords in wanted:
        call = _call(tree, line_number, name)
        if call is not None:
            changes += [
                one for one in _changes(call, keywords, starts, source)
                if not any(start <= one[0] < end for start, end in rewritten)
            ]  # fmt: skip
    changed = source
    for start, end, text in sorted(set(changes), reverse=True):
        changed = changed[:start] + text + changed[end:]
    before, after = (one.decode().splitlines(keepends=True) for one in (source, changed))
    lines = difflib.unified_diff(before, after, str(file), str(file))
    return "".join(one if one.endswith("\n") else f"{one}\n{_NO_NEWLINE}\n" for one in lines)


_NO_NEWLINE = r"\ No newline at end of file"
"""As `diff` and `patch` have it."""


def _call(tree: ast.Module, line: int, name: str) -> ast.Call | None:
    """The call of a name at a line; the line that a traceback has may be any of the call's."""
    found = [
        one for one in ast.walk(tree)
        if isinstance(one, ast.Call) and one.lineno <= line <= (one.end_lineno or one.lineno)
        and ast.unparse(one.func).rpartition(".")[2] == name
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def _changes(
    call: ast.Call, keywords: Mapping[str, str], starts: Sequence[int], source: bytes
) -> list[tuple[int, int, bytes]]:
    """Replace values that are given, and put the rest before the closing bracket."""
    assert call.end_lineno is not None
    assert call.end_col_offset is not None
    given = {one.arg: one.value for one in call.keywords}
    found, added = [], []
    for word, text in keywords.items():
        value = given.get(word)
        if value is None:
            added.append(f"{word}={text}")
            continue
        assert value.end_lineno is not None
        assert value.end_col_offset is not None
        start = starts[value.lineno - 1] + value.col_offset
        found.append((start, starts[value.end_lineno - 1] + value.end_col_offset, text.encode()))
    if added:
        closing = starts[call.end_lineno - 1] + call.end_col_offset - 1
        inside = source[:closing].rstrip()
        comma = "" if inside.endswith((b"(", b",")) else ", "
        space = " " if inside.endswith(b",") else ""
        found.append((len(inside), len(inside), (comma + space + ", ".join(added)).encode()))
    return found
