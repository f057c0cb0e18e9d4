"""Follows the commands that answers print, and says where one fails or contradicts the answer that it came from."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from workplace import Ended, Workplace

MOST_STEPS = 3
_COMMAND = re.compile(r"^  ((?:\(cd |[A-Z_]+=|lockstep |python ).*)$")
_CHANGED_ON_PURPOSE = ("--compile-eager", "--seed 0", "-later ", "-step-")
"""A next step that changes what is computed or looked at may have another answer than the first one."""


@dataclass(frozen=True)
class Answer:
    """What comparing two recordings said: its verdict, and the operator that it names."""

    verdict: str
    named: tuple[str, str] | None

    def contradicts(self, other: Answer) -> bool:
        return self.verdict != other.verdict or self.named != other.named


@dataclass
class Followed:
    """The commands that were followed from one comparison, and what is wrong with them."""

    commands: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def next_command(done: Ended) -> str:
    """The command that an output gives to be typed, the last one; "" for none."""
    lines = f"{done.out}\n{done.err}".splitlines()
    found = [match[1] for match in map(_COMMAND.match, lines) if match]
    return found[-1] if found else ""


def compared(place: Workplace, *words: str) -> tuple[Ended, Answer, str]:
    """A comparison as text, its answer by JSON, and the command of its JSON."""
    told = place.run("lockstep", "compare", *words)
    told_json = place.run("lockstep", "compare", *words, "--json")
    if not told_json.out.startswith("{"):
        return told, Answer(f"failed: {told_json.err}", None), ""
    answer = json.loads(told_json.out)
    origin = answer["origin"]
    named = None if origin is None else (origin["module"], origin["op"])
    command = (answer["what_next"] or {}).get("command", "")
    return told, Answer(answer["verdict"], named), command


def followed(place: Workplace, *words: str) -> Followed:
    """Compare two recordings, and follow what is printed until nothing more is, or three commands were."""
    told, first, in_json = compared(place, *words)
    found = Followed()
    line = next_command(told)
    if line != in_json:
        found.faults.append(f"text says {line!r}, JSON {in_json!r}")
    for _ in range(MOST_STEPS):
        if not line or line in found.commands:
            break
        done = place.run("bash", "-c", line)
        found.commands.append(line)
        found.outputs.append(done.out + done.err)
        found.faults += [f"{one}\n    after: {line}" for one in _faults(place, line, done, first)]
        verb, paths = _last_verb(line)
        if verb == "compare" and len(paths) == 2 and _is_on_purpose(line):
            first = compared(place, *paths)[1]  # what follows now is held against this one
        line = next_command(done)
    found.outputs.insert(0, told.out)
    return found


def _faults(place: Workplace, line: str, done: Ended, first: Answer) -> Iterator[str]:
    if "Traceback (most recent call last)" in done.out + done.err:
        yield "a traceback"
    verb, paths = _last_verb(line)
    on_purpose = _is_on_purpose(line)
    if done.code not in (0, 1) and not (verb == "compare" and done.out.startswith("INCOMPARABLE")):
        yield f"exit {done.code}: {(done.err or done.out)[-600:]}"
    elif verb == "compare" and len(paths) == 2 and not on_purpose:
        _, now, _ = compared(place, *paths)
        if now.contradicts(first):
            yield f"{first} becomes {now}"
    elif verb == "replay" and first.named is not None and not on_purpose:
        yield from _of_replay(done, first)


def _is_on_purpose(line: str) -> bool:
    return any(one in line for one in _CHANGED_ON_PURPOSE)


def _of_replay(done: Ended, first: Answer) -> Iterator[str]:
    """What a re-run denies: the origin that comparing named, its verdict or its operator."""
    explained = "That explains why the runs part." in done.out
    if "outside of this call" in done.out or (done.code == 0 and not explained):
        yield "the re-run acquits what comparing named, or gives no reason for it"
    head = done.out.splitlines()[0] if done.out else ""
    if head.startswith(("AGREE", "INCOMPARABLE")):
        yield f"{first} becomes {head}"
    if head.startswith("DIVERGED") and first.named is not None and first.named[1] not in head:
        yield f"{first} becomes {head}"


def _last_verb(line: str) -> tuple[str, list[str]]:
    """The last verb of Lockstep on a line, and the recordings that it takes."""
    words = shlex.split(re.split(r" (?:&&|;) ", line)[-1])
    words = words[words.index("lockstep") + 1 :] if "lockstep" in words else ["", ""]
    paths = []
    for word in words[1:]:
        if word.startswith("-"):
            break
        paths.append(word)
    return words[0], paths
