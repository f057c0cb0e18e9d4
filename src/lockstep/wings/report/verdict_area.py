"""The first thing on the page of a comparison: one sentence, its evidence, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lockstep.core.errors import ExitCode
from lockstep.core.finding import Evidence
from lockstep.core.text import times
from lockstep.report.comparison.kinds import INHERITED
from lockstep.report.page import Code, Command, Commands, Marked, Ruler, Verdict
from lockstep.report.page.page import Colour, Text
from lockstep.report.paragraphs import counted
from lockstep.wings.report.comparison_types import ComparisonData, Excerpt
from lockstep.wings.report.pair_blocks import excerpt_code

_ADDED_UP = "accumulate_grad"
"""What the recorder calls the gradient of a parameter as backward leaves it."""

_HOW_SURE = {
    Evidence.SKETCH.value: "The numbers are estimated from sketches",
    Evidence.STATISTICS.value: "The numbers are what the statistics prove at least",
}
"""What is said of numbers that are not of whole tensors, by their evidence."""

_LOOKS: dict[str, tuple[Colour, str, str]] = {
    "fault": ("fault", "origin", "Fault"),
    "set-up differs": ("setup", "setup", "Set-up differs"),
    "random stream differs": ("unjudged", "random", "Random stream differs"),
    "computed again in backward with other random numbers": (
        "fault",
        "origin",
        "Other random numbers in backward",
    ),
    "decision flipped inside the noise": ("unjudged", "decision", "Decision flipped"),
    "more accurate than the reference": ("agree", "better", "More accurate"),
    "uniform precision change": ("setup", "uniform", "Another precision"),
}
"""By the kind of the first origin: colours, icon, label."""


def verdict_of(data: ComparisonData) -> Verdict:
    """The answer, in the words of the terminal."""
    colour, icon, label = _look(data.answer)
    commands = [
        Command(_capital(one.title), one.command, _capital(one.words)) for one in data.advice
    ]
    origin = data.answer["origin"]
    return Verdict(
        colour=colour,
        icon=icon,
        label=label,
        crumb=_crumb(data.answer),
        sentence=_sentence(data),
        lede=_lede(data),
        facts=_facts(data),
        ruler=_ruler(origin),
        excerpts=_excerpts(data),
        commands=Commands(commands) if commands else None,
    )


def _look(answer: dict[str, Any]) -> tuple[Colour, str, str]:
    origin = answer["origin"]
    if answer["verdict"] == "incomparable":
        return "unjudged", "unjudged", "Cannot be compared"
    if answer["verdict"] == "agree":
        return "agree", "agree", "The runs agree"
    if origin is not None:
        return _LOOKS.get(origin["kind"], ("fault", "origin", _capital(origin["kind"])))
    if answer["exit_code"] == ExitCode.AGREES:
        return "setup", "uniform", "Another precision"
    return "fault", "inherited", "The runs part"


def _crumb(answer: dict[str, Any]) -> str:
    origin = answer["origin"]
    if origin is None:
        steps = answer["steps"]
        return f"steps {', '.join(map(str, steps[:8]))}" if steps else ""
    several = f" · 1 of {len(answer['origins'])} origins" if len(answer["origins"]) > 1 else ""
    role = origin["role"].replace("_", " ")
    ranks = answer["ranks"]["trained"]
    rank = f" · rank {origin['rank']} of {ranks}" if ranks else ""
    return f"step {origin['step']} · {origin['phase']} · {role}{rank}{several}"


def _sentence(data: ComparisonData) -> Text:
    """The heading: where the runs part, or what else is to be said of them."""
    origin = data.answer["origin"]
    if data.answer["verdict"] == "incomparable":
        return "The two recordings cannot be compared."
    if data.answer["verdict"] == "agree":
        return f"The runs agree: {data.first_clause}."
    if origin is None:
        return f"{_capital(data.first_clause)}."
    phase, tensor = origin["phase"], origin["tensor"]
    owner = _owner(origin["module"])
    if phase == "data":
        return ("The runs are fed other data: ", Marked(tensor or "the batch"), ".")
    if phase == "init":
        return ("The runs begin apart: ", Marked(tensor or origin["module"] or "the model"), ".")
    if phase == "optimizer":
        return (
            "The runs part in the update of ",
            Marked(tensor or origin["module"] or "the model"),
            ".",
        )
    if origin["op"] == _ADDED_UP and tensor:
        return ("The runs part in the gradient of ", Marked(tensor), ".")
    return (f"The runs part in the {phase} of ", *owner, ".")


def _owner(module: str) -> tuple[str | Marked, ...]:
    """A module in a sentence; a number alone, as those of a Sequential are called, needs a word."""
    marked = Marked(module or "the model")
    return ("module ", marked) if module.isdigit() else (marked,)


def _lede(data: ComparisonData) -> Text:
    """By how much, and what became of it: numbers of the first origin, the rest of a headline elsewhere."""
    origin, answer = data.answer["origin"], data.answer
    if origin is None:
        rest = _capital(data.later_clauses)
        return data.headline if answer["verdict"] == "incomparable" else rest
    words: list[str | Marked] = [Marked(origin["op"] or origin["module"], "code"), " at "]
    words += [Marked(origin["source"])] if origin["source"] else ["a line that was not recorded"]
    times = _times(data)
    if times:
        words += [" is off by ", Marked(times, "strong")]
    more = len(answer["origins"]) - 1
    words.append(". ")
    if more:
        words.append(
            f"There are {more} more origins. " if more > 1 else "There is one more origin. "
        )
    words.append(_after(data))
    return words


def _after(data: ComparisonData) -> str:
    """What follows: as many pairs as the table calls inherited, at as many sites as the terminal says."""
    kinds = data.pairs.kind
    pairs = sum(kinds.names[code] == INHERITED for code in kinds.codes)
    if not pairs:
        return "Nothing else differs."
    sites = data.answer["inherited"]
    where = f" at {counted(sites, 'site')}" if sites else ""
    follow = "follows" if pairs == 1 else "follow"
    return f"{counted(pairs, 'later difference')}{where} {follow} from it."


def _times(data: ComparisonData) -> str:
    """`33 000 times its noise floor`, where that is known."""
    if not data.origins or not data.answer["origin"]["rounds"]:
        return ""
    margin = float(data.pairs.margin[data.origins[0]])
    if not math.isfinite(margin) or margin < 1:
        return ""
    return f"{times(margin)} its noise floor"


def _facts(data: ComparisonData) -> list[tuple[str, Text]]:
    facts: list[tuple[str, Text]] = []
    origin = data.answer["origin"]
    for number, reason in enumerate(data.reasons):
        facts.append(("Why" if not number else "", _capital(reason)))
    facts += _measured_at(data)
    detail = data.details.get(data.origins[0]) if data.origins else None
    if detail is not None and detail.pattern is not None and detail.pattern.sentence:
        facts.append(("Shape of the error", _capital(detail.pattern.sentence)))
    classes = [
        one for one in data.answer["other_classes"] if origin and one["module"] == origin["module"]
    ]
    facts += [
        (
            "Different code",
            (
                Marked(one["reference"]),
                " in the reference, ",
                Marked(one["candidate"]),
                " in the candidate",
            ),
        )
        for one in classes
    ]
    if origin is not None and origin["evidence"] in _HOW_SURE:
        words = f"{_HOW_SURE[origin['evidence']]}; whole tensors were not recorded"
        facts.append(("How sure", words))
    return facts


def _ruler(origin: dict[str, Any] | None) -> Ruler | None:
    if origin is None or origin["tolerance"] is None or origin["margin"] is None:
        return None
    if not origin["rounds"]:
        return None
    measured = origin["tolerance"] * origin["margin"]
    return Ruler(origin["tolerance"], measured, "relative difference") if measured > 0 else None


def _excerpts(data: ComparisonData) -> Sequence[Code]:
    """The lines that the first origin was called at, where they were kept."""
    origin = data.answer["origin"]
    if origin is None:
        return ()
    excerpt: Excerpt | None = data.sources.get(origin["source"])
    return (excerpt_code(origin["source"], excerpt, "called here"),) if excerpt is not None else ()


def _measured_at(data: ComparisonData) -> list[tuple[str, Text]]:
    """Where the difference was seen, if not at the origin itself: what only one run calls has nothing to compare."""
    origin, pairs = data.answer["origin"], data.pairs
    if origin is None or not data.origins:
        return []
    row = data.origins[0]
    module, operator = pairs.module[row], pairs.operator[row]
    if (module, operator) == (origin["module"], origin["op"]):
        return []
    role = pairs.role[row].replace("_", " ")
    return [("Measured at", (Marked(f"{module or '(model)'} / {operator}"), f", {role}"))]


def _capital(words: str) -> str:
    """The same as the beginning of a sentence, unless it begins with a name."""
    first = words.partition(" ")[0]
    is_name = any(mark in first for mark in "._/\\")
    return words if is_name else words[:1].upper() + words[1:]
