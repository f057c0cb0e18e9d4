"""The resolved configuration of a script: parsed arguments, TrainingArguments, OmegaConf.

Values are kept as JSON, masked where a name or a value says that it is a secret. Nothing is looked for with `--redact`.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lockstep.capture.calls.leaves import plain_setting
from lockstep.capture.modules.live_modules import living
from lockstep.capture.patching.patches import Patch
from lockstep.capture.silence import Silence

_MOST = 1024
"""Values that are kept of each kind."""


class Configuration:
    """Notes the parsed arguments of this process from now on; `fail` gets errors of this class."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail = fail
        self._parsed: dict[str, Any] = {}
        self._found: dict[str, dict[str, Any]] | None = None
        self._depth = 0
        self.patch = Patch(argparse.ArgumentParser, "parse_known_args", self._noting)

    def noted(self) -> dict[str, dict[str, Any]]:
        """Return the known settings, by their source; looks through the heap once at most."""
        if self._found is None:
            self._found = self._look()
        return self._found

    def _look(self) -> dict[str, dict[str, Any]]:
        found = {"arguments": self._parsed}
        training = getattr(sys.modules.get("transformers.training_args"), "TrainingArguments", None)
        tree = getattr(sys.modules.get("omegaconf"), "DictConfig", None)
        kinds = tuple(kind for kind in (training, tree) if isinstance(kind, type))
        for item in living(*kinds) if kinds else ():
            if training is not None and isinstance(item, training):
                found["TrainingArguments"] = _kept(vars(item))
            elif vars(item).get("_parent") is None and not _is_hydras(item):
                whole = sys.modules["omegaconf"].OmegaConf.to_container(item, resolve=False)
                found["OmegaConf"] = {**found.get("OmegaConf", {}), **_kept(whole)}
        return {name: values for name, values in found.items() if values}

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def parse(parser: Any, *args: Any, **kwargs: Any) -> Any:
            self._depth += 1  # parsers of subcommands are called by the one above
            try:
                result = original(parser, *args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:
                with Silence(self._fail):
                    self._parsed = {**self._parsed, **_kept(vars(result[0]))}
            return result

        return parse


def _is_hydras(tree: Any) -> bool:
    """Whether a tree is that of Hydra's own settings, which stand beside the script's."""
    return list(tree.keys()) == ["hydra"]


def _kept(values: Mapping[Any, Any]) -> dict[str, Any]:
    kept = dict[str, Any]()
    for name, value in _flat(values, ""):
        if len(kept) == _MOST:
            break
        kept[name] = plain_setting(name.rpartition(".")[2], value)
    return kept


def _flat(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Values by their names, those inside of others behind a dot."""
    for name, value in list(values.items()):
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif not str(name).startswith("_"):
            yield f"{prefix}{name}", value
