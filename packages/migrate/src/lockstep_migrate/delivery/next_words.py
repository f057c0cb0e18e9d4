"""The one command to type after a migration: what writes it, or what shows that it does the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from lockstep_migrate.files.collection import Collection, from_here
from lockstep_migrate.plan import Plan

_ASIDE = ("--diff", "--dry-run", "--check", "--json", "--all", "--verify")
"""Options that a next command does not repeat."""


def next_command(
    plan: Plan, collection: Collection, arguments: Sequence[str], written: Path | None
) -> str:
    """The one thing to type after a preview, or after writing to a path of its own.

    `written`: the file or folder that was written; None after a preview.
    """
    given = [word for word in arguments if word not in _ASIDE]
    if written is not None:
        return _trial(plan, collection, written, _preview(given))
    if "-o" in given or "--output" in given or "--in-place" in given:
        return shlex.join(["lockstep", "migrate", *given])
    words = ["lockstep", "migrate", *_preview(given), "-o", _suggested(collection, plan.target)]
    return shlex.join(words)


def _preview(given: list[str]) -> list[str]:
    """The same arguments without those that write."""
    words, waiting = [], iter(given)
    for word in waiting:
        if word in ("-o", "--output", "--report"):
            next(waiting, None)
        elif not word.startswith(("--output=", "--report=")) and word != "--force":
            words.append(word)
    return words


def _trial(plan: Plan, collection: Collection, written: Path, given: list[str]) -> str:
    """How to see that the result does what the original does: here where it runs anywhere, else on the device."""
    script = _training(plan)
    if plan.target == "neutral":
        words, folder = ["lockstep", "migrate", "verify", *given, "--"], collection.root
    else:
        words, folder = ["lockstep", "record", "-o", "candidate", "--"], written
    if script is None:
        return f"{shlex.join(words)} CMD"
    place = written if folder == written and folder.is_file() else folder / script
    return shlex.join([*words, "python", from_here(place)])


_TRAINING = re.compile(r"\.backward\(|\.fit\(|Trainer\(")
_STARTED = re.compile(r"train|main|run|finetune|pretrain", re.IGNORECASE)
_EXAMPLES = frozenset({"examples", "example", "scripts", "tools", "demo"})


def _training(plan: Plan) -> PurePosixPath | None:
    """The script that most likely trains: one that is started, not a library; none where no file is."""
    packages = {file.path.parent for file in plan.files if file.path.stem == "__init__"}
    ranked = []
    for file in plan.files:
        path, text = file.path, file.source.text
        trains = bool(_TRAINING.search(text))
        guarded = "__main__" in text
        alone = path.parent not in packages and trains
        if path.suffix == ".py" and (guarded or alone) and not path.stem.startswith("test_"):
            shown = bool(_EXAMPLES.intersection(path.parts))
            named = bool(_STARTED.search(path.stem))
            order = (-trains, -guarded, -named, -shown, len(path.parts), str(path))
            ranked.append((order, path, trains or named))
    best = min(ranked, default=None)
    return best[1] if best is not None and best[2] else None


def _suggested(collection: Collection, target: str) -> str:
    if collection.single:
        given = collection.files[0].path
        return f"{given.stem}_{target}{given.suffix}"
    return f"{collection.root.name}-{target}"
