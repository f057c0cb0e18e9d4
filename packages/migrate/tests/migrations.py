"""Hand-made plans: a report never needs a script to be tested."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.plan import Edit, Failure, FilePlan, Mention, Outcome, Plan, Span

SCRIPT = (
    "import torch\r\n# für\r\nmodel = net.cuda()\r\nopt = FusedAdam(model)\r\nargs.cuda = 1\r\n"
)


def source_of(text: str) -> SourceText:
    """A text in UTF-8."""
    return SourceText(text.encode("utf-8", "surrogatepass"), text, "utf-8")


def span_of(text: str, part: str) -> Span:
    """Where a part stands that occurs once."""
    assert text.count(part) == 1
    start = text.index(part)
    return Span(start, start + len(part))


def rewritten(text: str, part: str, new: str, **changes: Any) -> Mention:
    """A site that becomes `new`."""
    span = span_of(text, part)
    values: dict[str, Any] = {"rule": "methods/cuda", "reason": "moves to the device that is there"}
    return Mention(
        outcome=Outcome.REWRITTEN, span=span, edits=(Edit(span, new),), **values | changes
    )


def listed(text: str, part: str, **changes: Any) -> Mention:
    """A site that needs a person."""
    values: dict[str, Any] = {
        "rule": "apex/optimizers",
        "reason": "apex.optimizers.FusedAdam has no equal on this target",
        "replacement": "torch.optim.Adam(fused=True)",
    }
    return Mention(outcome=Outcome.LISTED, span=span_of(text, part), **values | changes)


def kept(text: str, part: str, **changes: Any) -> Mention:
    """A site that needs nothing."""
    values: dict[str, Any] = {"rule": "own/attribute", "reason": "an option of your own"}
    return Mention(outcome=Outcome.KEPT, span=span_of(text, part), **values | changes)


def file_of(text: str, *mentions: Mention, path: str = "train.py") -> FilePlan:
    """A file with these sites and nothing at its head."""
    return FilePlan(PurePosixPath(path), source_of(text), mentions)


def script(path: str = "train.py") -> FilePlan:
    """One file with a site of each outcome and an edit at its head."""
    mentions = (
        kept(SCRIPT, "args.cuda"),
        rewritten(SCRIPT, "net.cuda()", "net.to(accelerator())"),
        listed(SCRIPT, "FusedAdam(model)"),
    )
    head = (Edit(Span(14, 14), "def accelerator(): ...\r\n"),)
    return FilePlan(PurePosixPath(path), source_of(SCRIPT), mentions, head)


def plan(*files: FilePlan, **changes: Any) -> Plan:
    """A plan of these files, for the neutral target."""
    values: dict[str, Any] = {"target": "neutral", "files": files or (script(),)}
    return Plan(**values | changes)


BROKEN = Failure(PurePosixPath("old.py"), "invalid syntax", 3)
