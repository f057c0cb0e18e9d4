"""Reading what a trial came to: from printed lines, JSON lines or TensorBoard's event files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from lockstep.errors import UsageError
from lockstep_tune.search.plan import Source, Target


def objective_of(target: Target, log: Path, where: str) -> float | None:
    """Return what the target came to in a trial; None where it stands nowhere.

    log: What the trial printed.
    where: The file or folder of the target, for this trial.

    Raises UsageError if the package that reads event files is not installed.
    """
    if target.source is Source.PRINTED:
        found = _printed(target.where, log)
    elif target.source is Source.JSON_LINES:
        found = _json_lines(target.name, Path(where))
    else:
        found = _tensorboard(target.name, Path(where))
    values = list(found)
    if not values:
        return None
    if not target.best:
        return values[-1]
    return max(values) if target.maximize else min(values)


def _printed(pattern: str, log: Path) -> Iterator[float]:
    searched = re.compile(pattern)
    with log.open(encoding="utf-8", errors="replace", newline=None) as lines:
        for line in lines:
            for found in searched.finditer(line):
                try:
                    yield float(found[1])
                except (TypeError, ValueError):  # the pattern is the user's and may take words too
                    continue


def _json_lines(name: str, file: Path) -> Iterator[float]:
    if not file.is_file():
        return
    for line in file.read_text("utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:  # a line that was cut, or a word between
            continue
        value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield float(value)


def _tensorboard(name: str, folder: Path) -> Iterator[float]:
    try:
        from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed here: pip install 'lockstep-numerics[tensorboard]'"
        ) from error
    if not folder.is_dir():
        return
    boards = EventMultiplexer(size_guidance={"scalars": 0, "tensors": 0})
    boards.AddRunsFromDirectory(str(folder)).Reload()
    events = []
    for run, tags in boards.Runs().items():
        if name in tags["scalars"]:
            events += [(one.wall_time, one.value) for one in boards.Scalars(run, name)]
        if name in tags["tensors"]:
            found = boards.Tensors(run, name)
            events += [(one.wall_time, make_ndarray(one.tensor_proto).item()) for one in found]
    yield from (float(value) for _, value in sorted(events))
