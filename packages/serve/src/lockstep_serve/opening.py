"""Open a version's file, settings and signature, in this process or in a runner's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import yaml

from lockstep.errors import UsageError
from lockstep.terminal import message
from lockstep_serve.protocol.tensors import is_served
from lockstep_serve.servable import HasGraph, Servable, Signature, unserved
from lockstep_serve.servables.kinds import open_servable

SETTINGS = "serve.yaml"
"""Beside a model's versions: `most: 32`, `without_batch_axis: [threshold]`, `batches: false`, `device: cpu`,
`threads: 1`."""

_KINDS = {"most": int, "without_batch_axis": list, "batches": bool, "device": str, "threads": int}

_DECIDED = "decided"
"""Beside the settings, where one process has decided for another: the sentence of `Signature.batching`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A version's file or folder, the device that runs it, and what `serve.yaml` says of it."""

    path: Path
    kind: ClassVar[str] = "served"

    device: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def open(self) -> Servable:
        """Open the model; whether it batches is proved from its graph, or the user's word.

        Raises UsageError if it cannot be served.
        """
        servable = open_servable(self.path, self.device, self.settings.get("threads", 0))
        for one in (*servable.signature.inputs, *servable.signature.outputs):
            if not is_served(one.dtype):
                raise unserved(self.path, one.name, one.dtype)
        without = frozenset(map(str, self.settings.get("without_batch_axis", ())))
        names = [one.name for one in servable.signature.inputs]
        unknown = sorted(without - {*names})
        if unknown:
            raise UsageError(
                f"{SETTINGS}: without_batch_axis names {unknown[0]}, which is not an input; they are"
                f" {', '.join(names)}"
            )
        if "without_batch_axis" in self.settings:
            servable.signature = replace(servable.signature, without_batch_axis=without)
        servable.signature = self._decided(servable)
        return servable

    def like(self, signature: Signature) -> Source:
        """The same, where it was decided already whether it batches."""
        decided = {"batches": signature.batches, _DECIDED: signature.batching}
        return replace(self, settings={**self.settings, **decided})

    def _decided(self, servable: Servable) -> Signature:
        signature = servable.signature
        asked = self.settings.get("batches", signature.batches or None)
        if _DECIDED in self.settings:
            return replace(signature, batches=bool(asked), batching=self.settings[_DECIDED])
        if asked is False:
            return replace(signature, batches=False, batching="not batched: asked for")
        without = signature.without_batch_axis
        shown = _mixing(servable, without) if isinstance(servable, HasGraph) else ""
        if asked:
            doubt = f", though {shown}" if shown else ""
            return replace(signature, batches=True, batching=f"batched: asked for{doubt}")
        if not isinstance(servable, HasGraph):
            shown = "it has no graph to look into"
        told = f"not batched: {shown}" if shown else "batched: proven"
        return replace(signature, batches=not shown, batching=told)


def _mixing(servable: HasGraph, without: Collection[str]) -> str:
    try:
        return servable.mixing(without)
    except (
        Exception
    ) as error:  # a graph of a kind that nobody thought of is not batched, and served all the same
        return f"its graph cannot be followed ({type(error).__name__}: {message(str(error))})"


def settings_of(path: Path) -> dict[str, Any]:
    """Return the settings of a model's `serve.yaml`; empty if there is none.

    Raises UsageError if it is no such file.
    """
    file = (path if path.is_dir() else path.parent) / SETTINGS
    if not file.is_file():
        return {}
    try:
        settings = yaml.safe_load(file.read_text())
        wrong = [name for name, value in settings.items() if type(value) is not _KINDS.get(name)]
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError) as error:
        raise UsageError(
            f"{file}: is not a YAML file of settings ({type(error).__name__})"
        ) from error
    if wrong:
        raise UsageError(f"{file}: {wrong[0]} is none of {', '.join(_KINDS)}, or of another type")
    for name, least in (("most", 1), ("threads", 0)):
        if settings.get(name, least) < least:
            raise UsageError(f"{file}: {name} is {settings[name]}; give {least} or more")
    return dict(settings)
