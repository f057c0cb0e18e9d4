"""Scripts for another framework than the one that was asked for: one line each, so that none is passed over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import imported_names
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.plan import Mention, Outcome, Span

_TENSORFLOW = re.compile(r"^[ \t]*(?:import|from)[ \t].*\b(?:tensorflow|keras|horovod)\b", re.M)
_TORCH = re.compile(r"^[ \t]*(?:import|from)[ \t].*\btorch\b", re.M)


def tensorflow_script(source: SourceText, *, serves: bool) -> Iterator[Mention]:
    """The place of a module that has work for `--from tensorflow`, and none of torch."""
    if not _TENSORFLOW.search(source.text):
        return
    from lockstep_migrate.tensorflow import takes_from_tensorflow, tensorflow_mentions

    scopes = ModuleScopes(source, parse(source.text))
    if not takes_from_tensorflow(scopes) or place_of_torch(scopes) is not None:
        return
    mentions, _ = tensorflow_mentions(scopes)
    if mentions:  # those that are kept too: how others are written may change them
        reason = "is a TensorFlow script: give --from tensorflow --to npu"
        span = _place(scopes, lambda name: name.split(".")[0] in ("tensorflow", "keras", "horovod"))
        outcome = Outcome.LISTED if serves else Outcome.KEPT
        yield Mention("framework/tensorflow", outcome, span or Span(0, 0), reason)


def imports_torch(text: str) -> bool:
    """Whether a line may import torch."""
    return _TORCH.search(text) is not None


def place_of_torch(scopes: ModuleScopes) -> Span | None:
    """The first statement that imports torch."""
    return _place(
        scopes, lambda name: name.split(".")[0] == "torch" or name.startswith("horovod.torch")
    )


def _place(scopes: ModuleScopes, wanted: Callable[[str], bool]) -> Span | None:
    """The first statement that imports something wanted from outside the project."""
    found = (node for node in scopes.nodes if any(map(wanted, imported_names(node))))
    return next(map(scopes.span, found), None)
