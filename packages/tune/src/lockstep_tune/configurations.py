"""The keys in which two configuration files differ, each for itself: YAML, JSON, TOML."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from lockstep.errors import UsageError
from lockstep_tune.differences import Difference, Differences, Levels
from lockstep_tune.switches import AS_IT_IS, State

KIND = "key"
"""`Differences.kind` of keys of a configuration file."""

_MOST_NAMED = 3
_MOST_CHARACTERS = 60
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Format:
    """How files of an ending are read and written.

    read: Returns nested dictionaries; whatever stands at a key is kept as the format has it.
    write: The text of such dictionaries.
    shown: The words for a value, equal for equal values.
    """

    read: Callable[[str], Any]
    write: Callable[[dict[str, Any]], str]
    shown: Callable[[Any], str]


def two_files(text: str) -> tuple[Path, Path]:
    """`GOOD..BAD` as two files; the dots between them may also stand in the paths.

    Raises UsageError if there are no two such files.
    """
    places = (at for at in range(len(text)) if text.startswith("..", at))
    pairs = [(Path(text[:at]), Path(text[at + 2 :])) for at in places]
    for good, bad in pairs:
        if good.is_file() and bad.is_file():
            return good, bad
    raise UsageError(
        f"--config {text}: write GOOD..BAD with two files that are there, as in good.yaml..bad.yaml"
    )


def is_configuration(path: Path) -> bool:
    """Return whether a file is there that has the ending of a configuration file."""
    return path.suffix.lower() in _FORMATS and path.is_file()


def keys(good: Path, bad: Path, command: Sequence[str], folder: Path) -> Differences:
    """Return the keys in which two files differ; `folder` gets the files of the states between them.

    Raises UsageError if a file cannot be read, nothing differs, or the command names neither file.
    """
    form = _format_of(bad)
    before, after = _read(good), _read(bad)
    if _format_of(good) is not form:
        raise UsageError(f"{good} and {bad} are of two formats; give both as one")
    differing = list(_differing(before, after, form, ()))
    if not differing:
        raise UsageError(
            f"{good} and {bad} have the same keys and values; there is nothing to search"
        )
    place = _named_in(command, good, bad)
    each = tuple(
        Difference(".".join(key), (_words(key, before, form), _words(key, after, form)))
        for key in differing
    )

    def state_at(levels: Levels) -> State:
        if all(levels):
            words = _renamed(command, place, bad)
            return AS_IT_IS if words == tuple(command) else State(f"with {bad}", command=words)
        if not any(levels):
            return State(f"with {good}", command=_renamed(command, place, good))
        tree = _copy(after)
        for key, level in zip(differing, levels, strict=True):
            if not level:
                _set(tree, key, before)
        name = sha256(repr(levels).encode()).hexdigest()[:12]
        copy = folder / f"{bad.stem}-{name}{bad.suffix}"
        copy.write_text(form.write(tree), "utf-8")
        return State(_name(each, levels), command=_renamed(command, place, copy))

    return Differences(KIND, each, state_at)


def _name(each: Sequence[Difference], levels: Levels) -> str:
    put_back = [one.values[0] for one, level in zip(each, levels, strict=True) if not level]
    if len(put_back) <= _MOST_NAMED:
        return f"with {', '.join(put_back)}"
    kept = [one.values[1] for one, level in zip(each, levels, strict=True) if level]
    return f"with the good file's keys, but {', '.join(kept)}"


def _format_of(path: Path) -> _Format:
    form = _FORMATS.get(path.suffix.lower())
    if form is None:
        raise UsageError(f"{path}: give a file that ends in {', '.join(_FORMATS)}")
    return form


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = _format_of(path).read(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    if not isinstance(tree, dict):
        raise UsageError(f"{path}: has no keys at its top")
    return tree


def _differing(
    before: Mapping[str, Any], after: Mapping[str, Any], form: _Format, above: Key
) -> Iterator[Key]:
    """Keys with other values, or of one file alone; below sections that both have."""
    for name in [*after, *(one for one in before if one not in after)]:
        key = (*above, name)
        if name in before and name in after:
            left, right = before[name], after[name]
            if isinstance(left, dict) and isinstance(right, dict) and left and right:
                yield from _differing(left, right, form, key)
                continue
            if form.shown(left) == form.shown(right):
                continue
        yield key


def _at(tree: Mapping[str, Any], key: Key) -> tuple[Any, bool]:
    """What stands at a key, and whether there is one."""
    here: Any = tree
    for name in key:
        if not isinstance(here, dict) or name not in here:
            return None, False
        here = here[name]
    return here, True


def _words(key: Key, tree: Mapping[str, Any], form: _Format) -> str:
    value, is_there = _at(tree, key)
    name = ".".join(key)
    if not is_there:
        return f"no {name}"
    shown = form.shown(value)
    return (
        f"{name}: {shown if len(shown) <= _MOST_CHARACTERS else shown[:_MOST_CHARACTERS] + ' ...'}"
    )


def _set(tree: dict[str, Any], key: Key, source: Mapping[str, Any]) -> None:
    """Give a key the value that it has in another tree; the sections above it are there in both."""
    value, is_there = _at(source, key)
    *above, last = key
    for name in above:
        tree = tree[name]
    if is_there:
        tree[last] = value
    else:
        del tree[last]


def _copy(tree: Any) -> Any:
    """Sections anew, and what stands at keys as it is."""
    return {name: _copy(one) for name, one in tree.items()} if isinstance(tree, dict) else tree


@dataclass(frozen=True, slots=True)
class _Place:
    """The word of a command that names the file, and what stands in front of the name in it."""

    at: int
    before: str


def _named_in(command: Sequence[str], good: Path, bad: Path) -> _Place:
    known = (bad.absolute(), good.absolute())
    for at, word in enumerate(command):
        before, equals, path = word.rpartition("=")
        for begin, text in ((f"{before}{equals}", path), ("", word)):
            if text and Path(text).absolute() in known:
                return _Place(at, begin)
    raise UsageError(f"the command names neither {bad} nor {good}; give it the path of {bad}")


def _renamed(command: Sequence[str], place: _Place, path: Path) -> tuple[str, ...]:
    named = command[place.at][len(place.before) :]
    text = named if Path(named).absolute() == path.absolute() else str(path)
    return (*command[: place.at], place.before + text, *command[place.at + 1 :])


# --- formats: YAML stays as it is written (`1e-3` is a number for some readers), so its nodes are kept ------------


def _yaml_tree(text: str) -> Any:
    return _sections(yaml.compose(text, yaml.SafeLoader))


def _sections(node: Any) -> Any:
    if not isinstance(node, yaml.MappingNode) or not node.tag.endswith(":map"):
        return node
    return {one.value: _sections(value) for one, value in node.value if isinstance(one.value, str)}


def _yaml_text(tree: dict[str, Any]) -> str:
    return str(yaml.serialize(_node(tree), Dumper=yaml.SafeDumper))


def _node(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    named = [(yaml.ScalarNode(_tag_of(name), name), _node(one)) for name, one in tree.items()]
    return yaml.MappingNode("tag:yaml.org,2002:map", named)


def _tag_of(name: str) -> str:
    """The tag that a key has where it is written plainly: `1` and `on` are no texts."""
    return str(yaml.SafeLoader("").resolve(yaml.ScalarNode, name, (True, False)))


def _yaml_words(value: Any) -> str:
    """A value on one line; the same text quoted and plain is one where it has one type."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_yaml_words(one)}' for name, one in value.items())}}}"
    if isinstance(value, yaml.ScalarNode):
        tag = value.tag.removeprefix("tag:yaml.org,2002:")
        shown = str(value.value)
        is_plain = _tag_of(shown) == value.tag
        return shown if is_plain else (json.dumps(shown) if tag == "str" else f"!{tag} {shown}")
    if isinstance(value, yaml.SequenceNode):
        return f"[{', '.join(_yaml_words(_sections(one)) for one in value.value)}]"
    return str(yaml.serialize(value, Dumper=yaml.SafeDumper)).strip()


def _toml_tree(text: str) -> Any:
    if sys.version_info < (3, 11):
        raise UsageError("TOML needs Python 3.11 or later; give YAML or JSON")
    import tomllib

    return tomllib.loads(text)


def _toml_text(tree: dict[str, Any]) -> str:
    return "".join(
        f"{'.'.join(map(json.dumps, key))} = {_toml_value(one)}\n" for key, one in _leaves(tree, ())
    )


def _leaves(tree: dict[str, Any], above: Key) -> Iterator[tuple[Key, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        inside = (f"{json.dumps(name)} = {_toml_value(one)}" for name, one in value.items())
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value) if isinstance(value, (str, bool, int, float)) else value.isoformat()


_YAML = _Format(_yaml_tree, _yaml_text, _yaml_words)
_FORMATS: Mapping[str, _Format] = {
    ".yaml": _YAML,
    ".yml": _YAML,
    ".json": _Format(json.loads, lambda tree: json.dumps(tree, indent=2) + "\n", json.dumps),
    ".toml": _Format(_toml_tree, _toml_text, _toml_value),
}
