"""Modules of flax and equinox as objects: what lies in them, by path, and what their classes are called."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from lockstep_frameworks.jax.trees import Path, leaf_paths
from lockstep_frameworks.tensorflow.attributes import plain_settings

_PUBLIC = {"flax.linen.": "flax.linen", "flax.nnx.": "flax.nnx", "equinox.nn.": "equinox.nn"}
_TRANSFORMS = "equinox._"
"""Where equinox has modules that are functions which it transforms."""
_MOST_LEVELS = 32


def class_name(value: Any) -> str:
    """Return the class of a module with its public package: `flax.nnx.Linear`, `train.Mine`; of a script its name."""
    kind = type(value)
    package = str(kind.__module__)
    for start, public in _PUBLIC.items():
        if package.startswith(start):
            package = public
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"


def settings_of_module(value: Any) -> dict[str, Any]:
    """Return the plain attributes of a module, and how convolutions of flax keep their axes."""
    inside = dict(vars(value)) if hasattr(value, "__dict__") else {}
    if dataclasses.is_dataclass(value):
        inside |= {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    found = plain_settings({name: one for name, one in inside.items() if not name.startswith("_")})
    if class_name(value) in ("flax.linen.Conv", "flax.nnx.Conv"):
        found["data_format"] = "channels_last"
    return found


def module_classes() -> list[type]:
    """Return the classes of modules whose calls tell no path by themselves: of flax NNX and equinox."""
    roots = [getattr(sys.modules.get(name), "Module", None) for name in ("flax.nnx", "equinox")]
    found: dict[type, None] = {}
    waiting = [one for one in roots if one is not None]
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found[kind] = None
            waiting.extend(type.__subclasses__(kind))
    return [one for one in found if not one.__module__.startswith(_TRANSFORMS)]


def inside_of(
    value: Any, above: Path = (), *, seen: dict[int, Any] | None = None
) -> Iterator[tuple[Path, Any]]:
    """Return all that lies in a module, by path: modules, lists and arrays, each once; the module itself first."""
    seen = {} if seen is None else seen
    if id(value) in seen or len(above) > _MOST_LEVELS:
        return
    yield above, value
    children = _children(value)
    if children:
        seen[id(value)] = value  # alive, so that nothing else gets its identity
    for name, child in children.items():
        yield from inside_of(child, (*above, str(name)), seen=seen)


def _children(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if not isinstance(value, tuple(_kinds_with_children())):
        return {}
    return {name: one for name, one in vars(value).items() if not name.startswith("_")}


def _kinds_with_children() -> Iterator[type]:
    for name, kind in (("flax.nnx", "Pytree"), ("flax.nnx", "Module"), ("equinox", "Module")):
        found = getattr(sys.modules.get(name), kind, None)
        if isinstance(found, type):
            yield found


def leaf_names_of_equinox(args: Sequence[Any]) -> dict[Path, Path]:
    """Return the path of each leaf of arguments that `equinox.filter_jit` has taken apart, by its word and number.

    It hands on what is no array as `(function, first, rest)`, each with its leaves and the tree that they are of.
    """
    static = args[-1] if args else None
    if "equinox" not in sys.modules or not (isinstance(static, tuple) and len(static) == 3):
        return {}
    found: dict[Path, Path] = {}
    for word, part in zip(("first", "rest"), static[1:], strict=True):
        leaves, tree = part if isinstance(part, tuple) and len(part) == 2 else ((), None)
        if not isinstance(tree, jax.tree_util.PyTreeDef):
            return {}
        whole = jax.tree_util.tree_unflatten(tree, range(len(leaves)))
        found |= {(word, str(i)): (word, *path) for i, path in enumerate(leaf_paths(whole))}
    return found


def _raw_value(variable: Any) -> Any:
    """What a variable of NNX holds; None for anything else."""
    getter = getattr(type(variable), "get_raw_value", None)
    if getter is not None:
        return getter(variable)
    is_variable = hasattr(type(variable), "raw_value")  # of an earlier flax
    return variable.raw_value if is_variable else None


def leaf_names_of_nnx(tree: Any) -> dict[int, Path]:
    """Return the path of each leaf of arguments that flax NNX has taken apart; the leaves are their own numbers."""
    extract = sys.modules.get("flax.nnx.extract")
    graph = sys.modules.get("flax.nnx.graphlib")
    if extract is None or graph is None:
        return {}
    parts = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda one: isinstance(one, extract.NodeStates)
    )[0]
    found: dict[int, Path] = {}
    index = graph.IndexMap()
    for _, part in parts:
        if isinstance(part, extract.NodeStates) and len(part.states) == 1:
            whole = graph.unflatten(part.graphdef, part.states[0], index_ref=index)
            for path, one in inside_of(whole):
                number = _raw_value(one)
                if type(number) is int and number not in found:
                    found[number] = path
    return found
