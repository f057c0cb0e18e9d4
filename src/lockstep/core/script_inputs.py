"""What a script takes from outside: versions of libraries, environment variables, and settings in files.

The script is its own files, without those of installed packages. What they import and read is found in their text, so
that nothing is imported, and no access to the environment is watched.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from lockstep.core.secrets import masked_setting

FOLDER = "(folder)"
"""The key of a name in `RankManifest.settings_files` that is a folder's."""

CONTENT = "(content)"
"""The key of a file whose keys could not be read; its value is a digest."""

_MOST_BYTES = 256 * 1024
"""Of a file of Python that is searched, or of settings that are read."""
_MOST_SETTINGS = 1024
_ENDINGS = frozenset({".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf"})
_IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([\w., \t]+))", re.M
)
_READS = re.compile(r"\b(?:environ|getenv|envvar|environb)\b")
_WORDS = re.compile(r"""["']([A-Za-z_]\w*)["']""")
_PLAIN = re.compile(r"[+-]?\d[\d.eE+-]{0,30}|[A-Za-z_][\w.-]{0,30}|")


def library_versions(sources: Iterable[str]) -> dict[str, str]:
    """Return the versions of the loaded libraries that these files import, by the name that is imported."""
    return dict(_versions(tuple(sources), len(sys.modules)))


@lru_cache(maxsize=4)
def _versions(sources: tuple[str, ...], _loaded: int) -> tuple[tuple[str, str], ...]:
    names = sorted({name for text in map(_text, sources) for name in _imported(text)})
    found = ((name, _version(name)) for name in names if name in sys.modules)
    return tuple((name, version) for name, version in found if version)


def _imported(text: str) -> Iterator[str]:
    """Top-level names of the modules that a file imports."""
    for source, several in _IMPORTS.findall(text):
        for one in [source] if source else several.split(","):
            yield one.split()[0].partition(".")[0] if one.strip() else ""


def _version(name: str) -> str:
    """What a module says of itself, else the distribution of its name; "" for Python's own and for what tells none."""
    if name in sys.stdlib_module_names:
        return ""
    # Not by getattr: some modules load others when they are asked for what they have not.
    said = vars(sys.modules[name]).get("__version__") if name in sys.modules else None
    if isinstance(said, str):
        return str(said)
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def read_variables(sources: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that these files name where they read the environment, as they may be kept.

    A number or a word is kept as it is, secrets masked; anything else as a digest.
    """
    return {
        name: _kept(name, environment[name])
        for name in _named_variables(tuple(sources))
        if name in environment
    }


@lru_cache(maxsize=4)
def _named_variables(sources: tuple[str, ...]) -> tuple[str, ...]:
    texts = (text for text in map(_text, sources) if _READS.search(text))
    return tuple(sorted({name for text in texts for name in _WORDS.findall(text)}))


def _kept(name: str, value: str) -> str:
    shown = masked_setting(name, value)
    return shown if shown != value or _PLAIN.fullmatch(value) else _digest(value.encode())


def _digest(data: bytes) -> str:
    return f"digest {sha256(data).hexdigest()[:12]}"


@lru_cache(maxsize=4096)
def _text(file: str) -> str:
    """The text of a file of Python; "" where it is none, or too large to be a person's."""
    try:
        path = Path(file)
        return "" if path.stat().st_size > _MOST_BYTES else path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def settings_files(
    configuration: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the settings in those files that the values of a configuration name, by these values.

    A folder has the one key `FOLDER`, a file of settings that cannot be read the one key `CONTENT`. Other files are
    left out.
    """
    values = {
        value
        for known in configuration.values()
        for value in known.values()
        if isinstance(value, str)
    }
    found = {value: _settings(value) for value in sorted(values)}
    return {value: settings for value, settings in found.items() if settings}


def _settings(value: str) -> dict[str, Any]:
    try:
        path = Path(value)
        if value and path.is_dir():
            return {FOLDER: ""}
        if path.suffix.lower() not in _ENDINGS or path.stat().st_size > _MOST_BYTES:
            return {}
        data = path.read_bytes()
    except (OSError, ValueError):
        return {}
    return settings_in(data, path.suffix.lower()) or {CONTENT: _digest(data)}


def settings_in(data: bytes, ending: str) -> dict[str, Any]:
    """Return the settings of a file by their dotted names, secrets masked; empty where they cannot be read.

    >>> settings_in(b'{"train": {"lr": 0.1, "layers": [1, 2]}}', ".json")
    {'train.lr': 0.1, 'train.layers.0': 1, 'train.layers.1': 2}
    """
    try:
        tree = _parsed(data, ending)
    except (ValueError, RecursionError):
        return {}
    except Exception as error:
        if "yaml" in type(error).__module__:  # its own errors: the module may not be there
            return {}
        raise
    found = dict[str, Any]()
    for name, value in _flat(tree, ""):
        if len(found) == _MOST_SETTINGS:
            return {}
        plain = value if value is None or isinstance(value, (bool, int, float)) else str(value)
        found[name] = masked_setting(name, plain) if isinstance(plain, str) else plain
    return found


def _parsed(data: bytes, ending: str) -> Any:
    if ending == ".json":
        return json.loads(data)
    if ending in (".yaml", ".yml") and "yaml" in sys.modules:  # who reads such a file has loaded it
        return sys.modules["yaml"].safe_load(data)
    if ending == ".toml" and sys.version_info >= (3, 11):
        import tomllib

        return tomllib.loads(data.decode())
    return None


def _flat(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Leaves by their dotted names."""
    if isinstance(tree, Mapping):
        items: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    else:
        items = ()
    for name, value in items:
        if isinstance(value, (Mapping, list)) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
