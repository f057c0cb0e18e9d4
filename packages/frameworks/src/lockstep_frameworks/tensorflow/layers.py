"""Layers of Keras: the path of modules, their settings, what goes in and comes out, and the names of variables."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lockstep.recorder import Patch
from lockstep.recordings import CallKind, Phase, Role
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.tensorflow.attributes import plain_settings

if TYPE_CHECKING:
    from lockstep_frameworks.tensorflow.tap import Tap


def keras_loaded() -> Any:
    """Keras 3, once all of it is imported; None before, and where nobody imports it."""
    keras = sys.modules.get("keras")
    spec = getattr(keras, "__spec__", None)
    whole = spec is not None and not getattr(spec, "_initializing", False)
    return keras if whole and hasattr(keras, "Layer") else None


def class_name(value: Any) -> str:
    """Class of a layer or an optimizer with its package: `keras.layers.Dense`, `train.Mine`."""
    kind = type(value)
    package = str(kind.__module__)
    if package.startswith("keras.src."):
        package = "keras." + package.split(".")[2]
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"


class Layers:
    """Listens to calls of layers.

    tap: Takes what is seen.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._patch: Patch | None = None
        self._settings: dict[int, tuple[Any, dict[str, Any]]] = {}

    def install_once(self) -> None:
        """Begin to listen once Keras is there."""
        if self._patch is None and (keras := keras_loaded()) is not None:
            self._patch = Patch(keras.Layer, "__call__", self._wrap_call)
            self._patch.put()

    def remove(self) -> None:
        """Listen no more."""
        if self._patch is not None:
            self._patch.take_back()

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            tap = self._tap
            if tap.is_idle() or not tap.local.runs(args):
                return original(layer, *args, **kwargs)
            sites: list[CodeSite] = []
            tap.silenced(lambda: sites.append(self._begin(layer, args)))
            if not sites:
                return original(layer, *args, **kwargs)
            tap.local.path.append(sites[0])
            try:
                result = original(layer, *args, **kwargs)
            finally:
                tap.local.path.pop()
            tap.silenced(lambda: self._end(layer, sites[0], result))
            return result

        return call

    def _begin(self, layer: Any, args: Any) -> CodeSite:
        tap, place = self._tap, self._tap.place()
        own = str(layer.name).replace("/", ".")
        path = own if place is None else f"{place.module}.{own}"
        kind = class_name(layer)
        site = CodeSite(
            tap.rank(), path, kind, CallKind.MODULE, Phase.FORWARD, self._settings_of(layer),
            self._tap.stack(), place, kind,
        )  # fmt: skip
        for index, tensor in enumerate(tf.nest.flatten(args)):
            if tap.is_of_training():
                tap.see(site, Role.INPUT, f"args.{index}", tensor, index)
        return site

    def _end(self, layer: Any, site: CodeSite, result: Any) -> None:
        """Weights are named once the layer is built, which its first call may do."""
        tap = self._tap
        count = 0
        for variable in layer.weights:
            tap.note_variable(variable.value, variable.path.replace("/", "."))
            count += int(
                variable.shape.num_elements() if hasattr(variable.shape, "num_elements") else 0
            )
        if not tap.is_of_training():
            return
        tap.then(
            None,
            lambda _: tap.recording.module(site.rank, site.module, site.op, count, site.arguments),
        )
        outputs = tf.nest.flatten(result)
        for index, tensor in enumerate(outputs):
            name = "result" if len(outputs) == 1 else f"result.{index}"
            tap.see(site, Role.OUTPUT, name, tensor, index)
            tap.left.setdefault(id(tensor), ([], tensor))[0].append((site, name, index))

    def _settings_of(self, layer: Any) -> dict[str, Any]:
        known = self._settings.get(id(layer))
        if known is None:
            try:
                with tf.init_scope():
                    settings = plain_settings(layer.get_config())
            except Exception:  # a layer of the script's own may tell none
                settings = {}
            known = self._settings[id(layer)] = (layer, settings)
        return known[1]
