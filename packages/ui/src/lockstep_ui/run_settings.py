"""Return the settings of a run as names and plain values, for telling several runs apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.recordings import REDACTED, RankManifest, Recording

MOST_SETTINGS = 300
"""Settings of one run; a configuration may hold thousands."""

_OF_OPTIMIZER = "optimizer."

Value = str | float | int | bool

_OPTION = re.compile(r"-{1,2}([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.DOTALL)
_OVERRIDE = re.compile(r"([A-Za-z_][\w./-]*)=(.*)\Z", re.DOTALL)


def settings_of(recording: Recording) -> dict[str, Value]:
    """Options of the command, the optimizer with its numbers, seeds, precision, machine; of ranks the first one.

    An option has its own name, `lr`, whether the command has it or the script's configuration. The first optimizer's
    first group held `optimizer.lr` in the first recorded step: after a warm-up, this is another number.

    recording: Whose manifests are read, and nothing else.
    """
    found: dict[str, Value] = dict(_of_command(recording.manifest.command))
    first = next(iter(recording.ranks.values()), None)
    if first is not None:
        for name, value in _of_rank(first.manifest):
            told = found.get(name.rpartition(".")[2])  # the command line says it already
            of_optimizer = name.startswith(
                _OF_OPTIMIZER
            )  # told always: of another run it is all there is
            if of_optimizer or told is None or str(told) != str(value):
                found.setdefault(name, value)
        for source, key, value in _of_configuration(first.manifest):
            last = key.rpartition(".")[2]
            # one name, whether an option was typed or left at its default
            told = found[last] if last in found else found.setdefault(key, value)
            if str(told) != str(value):
                found.setdefault(f"{source}.{key}", value)
    return dict(list(found.items())[:MOST_SETTINGS])


def options_of(command: Sequence[str]) -> dict[str, Value]:
    """Return options and overrides of a command line; an option without a value is true.

    Examples
    --------
    >>> options_of(["python", "train.py", "--lr", "3e-4", "--bf16", "model.depth=12", "--name=a"])
    {'lr': 0.0003, 'bf16': True, 'model.depth': 12, 'name': 'a'}
    """
    return dict(_of_command(command))


def _of_command(command: Sequence[str]) -> Iterator[tuple[str, Value]]:
    words = [] if command == [REDACTED] else list(command)[1:]
    taken = -1
    for at, word in enumerate(words):
        option, override = _OPTION.match(word), _OVERRIDE.match(word)
        if option is not None:
            following = words[at + 1] if at + 1 < len(words) else "-"
            is_alone = option[2] is None and (
                following.startswith("-") and not _is_number(following)
            )
            if option[2] is None and not is_alone:
                taken = at + 1
            value = following if option[2] is None else option[2]
            yield option[1], True if is_alone else _plain(value)
        elif override is not None and at != taken:
            yield override[1], _plain(override[2])


def _of_rank(manifest: RankManifest) -> Iterator[tuple[str, Value]]:
    for optimizer in manifest.optimizers[:1]:
        yield "optimizer", optimizer.name.rpartition(".")[2]
        for name, value in (optimizer.groups[0] if optimizer.groups else {}).items():
            if isinstance(value, (int, float, str)):
                yield f"{_OF_OPTIMIZER}{name}", value
    yield "ranks", manifest.world_size
    yield "device", ", ".join(dict.fromkeys(manifest.devices))
    for group in (
        manifest.seeds,
        manifest.mixed_precision,
        manifest.asked,
        manifest.numerics,
        manifest.packages,
    ):
        for name, text in group.items():
            yield ("seed" if group is manifest.seeds and name == "torch" else name), _plain(text)


def _of_configuration(manifest: RankManifest) -> Iterator[tuple[str, str, Value]]:
    for source, known in manifest.configuration.items():
        for key, value in known.items():
            if isinstance(value, (int, float, str)):
                yield source, key, value


def _plain(text: Any) -> Value:
    """A number where the text is one."""
    if not isinstance(text, str) or not _is_number(text):
        return str(text)
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else float(text)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) is not None
