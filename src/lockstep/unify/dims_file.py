"""The dims file: the meaning of the axes of tensors that several ranks hold parts of.

```yaml
mesh: {tp: 2}               # how many ranks stand along each axis, those of the last one next to each other
parameters:                 # by name: the parameter, its gradient, its state in the optimizer
  "*.fc1.weight": h[tp] d
  "*.fc2.weight": d h[tp]
sites:                      # by a pattern, or a site as compare prints it: every tensor, or by name and role
  "*.fc1": {args.0: b d, result: b h[tp], grad_input: "b d[tp:partial]"}
  "gelu": b h[tp]
```

What stands first counts. The same file named `dims.yaml` in a recording, or in another tool's dump, is read as well.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lockstep.core.dims import Dims, Mesh, dims_of
from lockstep.core.errors import UsageError
from lockstep.core.records import TensorRecord
from lockstep.core.selection import site_matches
from lockstep.core.site import Role, Site

_MOST_BYTES = 1 << 20
_SECTIONS = ("mesh", "parameters", "sites")
_MOST_RANKS = 1 << 16
_GRADIENTS = frozenset({Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD})
_EXAMPLE = 'write for example `sites: {"*.fc1": {result: "b h[tp]"}}`'


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, and the dims of the tensors that it matches, by name or role, or of all ("")."""

    pattern: str
    dims: Mapping[str, Dims]


@dataclass(frozen=True, slots=True)
class DimsFile:
    """The contents of a dims file.

    mesh: None where it does not say.
    parameters, sites: By patterns of parameter names and of sites; the first that matches counts.
    where: Where it was written, for messages.
    """

    mesh: Mesh | None = None
    parameters: tuple[Rule, ...] = ()
    sites: tuple[Rule, ...] = ()
    where: str = "dims"
    used: set[str] = field(default_factory=set, compare=False)

    def of(self, record: TensorRecord, call: Site) -> Dims | None:
        """The dims of a record of a call; None where nothing is said of it."""
        # a state may be a count of steps
        for name in _parameter_names(record) if record.shape else ():
            if (told := self.of_parameter(name)) is not None:
                return told
        for rule in self.sites:
            if site_matches(rule.pattern, call):
                self.used.add(rule.pattern)
                found = next((rule.dims[key] for key in _keys(record) if key in rule.dims), None)
                if found is not None:
                    return found
        return None

    def of_parameter(self, name: str) -> Dims | None:
        """Return the dims of a tensor with a parameter's axes, by the parameter's full name; None if the file has
        none.
        """
        for rule in self.parameters:
            if fnmatch.fnmatchcase(name, rule.pattern):
                self.used.add(rule.pattern)
                return rule.dims[""]
        return None

    @property
    def over(self) -> tuple[str, ...]:
        """The axes of a mesh that its dims name, in their order."""
        told = (dims for rule in (*self.parameters, *self.sites) for dims in rule.dims.values())
        return tuple(dict.fromkeys(split.over for dims in told for _, split in dims.splits))

    @property
    def unused(self) -> Iterator[str]:
        """Patterns that have matched nothing."""
        for rule in (*self.parameters, *self.sites):
            if rule.pattern not in self.used:
                yield rule.pattern


def _parameter_names(record: TensorRecord) -> Iterator[str]:
    """What may be a parameter's name, in full."""
    if record.role in (Role.STATE, Role.STATE_AFTER):
        yield record.name.partition("|")[0]
    elif record.argument or record.role in _OF_PARAMETERS:
        yield record.name


_OF_PARAMETERS = frozenset({Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER, Role.BUFFER})


def _keys(record: TensorRecord) -> tuple[str, ...]:
    """What a record is called in a rule, the closest first: a gradient is rather told by its role than by its name."""
    name, role = record.name, record.role.value
    between = (role, name) if record.role in _GRADIENTS else (name, role)
    return f"{role}.{name}", *between, ""


def read_dims(path: Path) -> DimsFile:
    """Read a dims file; nothing in it is executed.

    Raises UsageError if it cannot be read, is not valid YAML, or holds something other than dims.
    """
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise UsageError(
                f"{path}: is not a file of at most {_MOST_BYTES} bytes; give a YAML file"
            )
        value = yaml.safe_load(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{path}: is not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(value, dict) or not set(value) <= set(_SECTIONS):
        raise UsageError(f"{path}: holds something other than {', '.join(_SECTIONS)}; {_EXAMPLE}")
    return DimsFile(
        _mesh(path, value.get("mesh")),
        _rules(path, "parameters", value.get("parameters")),
        _rules(path, "sites", value.get("sites")),
        str(path),
    )


def _mesh(path: Path, given: Any) -> Mesh | None:
    if given is None:
        return None
    if (
        not isinstance(given, dict)
        or not given
        or not all(
            isinstance(axis, str) and type(size) is int and 0 < size <= _MOST_RANKS
            for axis, size in given.items()
        )
        or Mesh(given).ranks > _MOST_RANKS
    ):
        raise UsageError(
            f"{path}: mesh: {given!r} is not a mesh; write for example `mesh: {{dp: 2, tp: 4}}`"
        )
    return Mesh(given)


def _rules(path: Path, section: str, given: Any) -> tuple[Rule, ...]:
    if given is None:
        return ()
    if not isinstance(given, dict):
        raise UsageError(f"{path}: {section}: is not a list of `pattern: dims`; {_EXAMPLE}")
    rules = []
    for pattern, told in given.items():
        by_key = {"": told} if isinstance(told, str) else told if section == "sites" else None
        if (
            not isinstance(pattern, str)
            or not isinstance(by_key, dict)
            or not all(isinstance(one, str) for pair in by_key.items() for one in pair)
        ):
            raise UsageError(
                f"{path}: {section}: {pattern!r}: {told!r} is not a pattern with dims; {_EXAMPLE}"
            )
        try:
            rules.append(Rule(pattern, {key: dims_of(text) for key, text in by_key.items()}))
        except ValueError as error:
            raise UsageError(f"{path}: {section}: {pattern}: {error}") from error
    return tuple(rules)


__all__ = ["DimsFile", "Rule", "read_dims"]
