"""Scripts for another framework than the one that was asked for: one line each, so that none is passed over."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from lockstep_migrate.engine.own_names import OwnNames
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import imported_names
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.plan import Mention, Outcome, Span
from lockstep_migrate.torch.python import migrate_python
from lockstep_migrate.torch.unit import Settings

_TENSORFLOW = re.compile(r"^[ \t]*(?:import|from)[ \t].*\b(?:tensorflow|keras|horovod)\b", re.M)
_TORCH = re.compile(r"^[ \t]*(?:import|from)[ \t].*\btorch\b", re.M)


def tensorflow_script(source: SourceText, *, serves: bool) -> Iterator[Mention]:
    """The place of a module that has work for `--from tensorflow`, and none of torch."""
    if not _TENSORFLOW.search(source.text):
        return
    from lockstep_migrate.tensorflow import takes_from_tensorflow, tensorflow_mentions

    scopes = ModuleScopes(source, parse(source.text))
    if not takes_from_tensorflow(scopes) or _first(scopes, _is_of_torch) is not None:
        return
    mentions, _ = tensorflow_mentions(scopes)
    if mentions:  # those that are kept too: how others are written may change them
        reason = "is a TensorFlow script: give --from tensorflow --to npu"
        span = _place(scopes, _is_of_tensorflow)
        outcome = Outcome.LISTED if serves else Outcome.KEPT
        yield Mention("framework/tensorflow", outcome, span, reason)


def pytorch_script(source: SourceText, settings: Settings) -> Iterator[Mention]:
    """A place to list where a module has work for `--from pytorch`, and none of TensorFlow."""
    if not _TORCH.search(source.text):
        return
    from lockstep_migrate.tensorflow import takes_from_tensorflow

    scopes = ModuleScopes(source, parse(source.text))
    if takes_from_tensorflow(scopes) or _first(scopes, _is_of_torch) is None:
        return
    found = migrate_python(source, settings, OwnNames()).mentions
    if any(mention.outcome is not Outcome.KEPT for mention in found):
        reason = f"is a PyTorch script: give --from pytorch --to {settings.target.name}"
        span = _place(scopes, _is_of_torch)
        yield Mention("framework/pytorch", Outcome.LISTED, span, reason)


def _is_of_torch(name: str) -> bool:
    return name.partition(".")[0] == "torch" or name.startswith("horovod.torch")


def _is_of_tensorflow(name: str) -> bool:
    return name.partition(".")[0] in ("tensorflow", "keras", "horovod")


def _first(scopes: ModuleScopes, wanted: Callable[[str], bool]) -> ast.AST | None:
    """The first statement that imports something wanted from outside the project."""
    return next((node for node in scopes.nodes if any(map(wanted, imported_names(node)))), None)


def _place(scopes: ModuleScopes, wanted: Callable[[str], bool]) -> Span:
    node = _first(scopes, wanted)
    return scopes.span(node) if node is not None else Span(0, 0)
