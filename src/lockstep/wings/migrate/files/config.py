"""Settings files: device strings, backends, variables, packages and images among their values.

What a program makes of a value cannot be told from the file, so nothing is rewritten: each place is listed with what
the target calls it. Keys are the program's own and are kept.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from lockstep.wings.migrate.engine.spans import Cover
from lockstep.wings.migrate.files.scalars import (
    Scalar,
    ini_scalars,
    json_scalars,
    requirement_scalars,
    toml_scalars,
    yaml_scalars,
)
from lockstep.wings.migrate.files.shell import BACKEND, DEVICE, backend_for, shell_mentions
from lockstep.wings.migrate.files.surroundings import (
    DEVICES,
    Surroundings,
    Variable,
    names_old_device,
    old_names,
    per_device,
    surroundings,
)
from lockstep.wings.migrate.plan import Mention, Outcome, Span

RULES: Mapping[str, str] = {
    "config/device": "A device string as a value.",
    "config/backend": "The collective backend as a value.",
    "config/variable": "An environment variable of CUDA or NCCL.",
    "config/package": "A package, index or channel that is built for CUDA.",
    "config/image": "A container image, runtime or resource for NVIDIA's devices.",
    "config/name": "The dotted name of something in torch.cuda or apex.",
    "config/command": "A command in a settings file.",
    "config/key": "A key: its name belongs to the program that reads it.",
    "config/own-name": "A name of the project's own, such as a file.",
    "config/prose": "A comment or a description.",
    "config/unknown": "A value that names the old device and whose meaning cannot be told.",
}


class ConfigKind(enum.Enum):
    """How a settings file is written, and whether its values are packages."""

    YAML = "yaml"
    ENVIRONMENT = "environment"
    JSON = "json"
    TOML = "toml"
    INI = "ini"
    REQUIREMENTS = "requirements"


_READERS: Mapping[ConfigKind, Callable[[str], Iterator[Scalar]]] = {
    ConfigKind.YAML: yaml_scalars,
    ConfigKind.ENVIRONMENT: yaml_scalars,
    ConfigKind.JSON: json_scalars,
    ConfigKind.TOML: toml_scalars,
    ConfigKind.INI: ini_scalars,
    ConfigKind.REQUIREMENTS: requirement_scalars,
}
_PACKAGE_KEYS = re.compile(r".*(requires?|dependenc|packages|conda|pip|channels).*", re.IGNORECASE)
_COMMANDS = re.compile(r"cu\d\d|nvcr\.io|gpu|nsys", re.IGNORECASE)
"""What tells of the old device in a command or image that does not name it."""

_LONGEST_VALUE = 4096
"""A longer value is a script or data, and no name."""

_REQUIREMENT = re.compile(
    r"(?:[\w-]+::)?([A-Za-z0-9][\w.-]*?)(?:\[[\w,\s-]*\])?\s*(?:[=<>!~@;].*)?"
)
_BUILT_FOR_CUDA = re.compile(r"\+cu\d{2,3}|/cu\d{2,3}\b|=[\w.]*cuda[\d.]*\w*", re.I)
_PROJECT = re.compile(r"github\.com[/:]nvidia/([\w-]+)", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)(?:=.*)?", re.DOTALL)
_DOTTED = re.compile(
    r"(?:torch\.(?:\w+\.)*cuda|apex)(?:\.\w+)+|torch\.cuda|apex\.\w[\w.]*|[\w.]*FusedLayerNorm"
)
_IMAGE = re.compile(
    r"(?:docker://)?(?:nvcr\.io/|(?:[\w.-]+/)*nvidia/(?:cuda|cudagl|pytorch|tensorflow|tensorrt|tritonserver)\b"
    r"|(?:[\w.-]+/)+[\w.-]+:[\w.-]*(?:cuda|cu\d\d))\S*",
    re.IGNORECASE,
)
_RESOURCE_KEYS = frozenset({"nvidia.com/gpu", "nvidia.com/mig"})
_RUNTIME_KEYS = frozenset(
    {"runtime", "driver", "runtimeclassname", "default-runtime", "accelerator"}
)
_DEVICE_WORD = re.compile(
    r"(?<![A-Za-z0-9])(?:cuda|cudnn|cublas|nccl|nvidia|nvtx|apex|tf32|tensorrt)(?![A-Za-z])", re.I
)
_PROSE_KEYS = re.compile(
    r".*(description|help|comment|title|summary|text|note|doc|message|readme)s?", re.I
)


def config_kind(path: PurePosixPath) -> ConfigKind:
    """How a settings file is written, by its name."""
    name, suffix = path.name.lower(), path.suffix.lower()
    if suffix in {".txt", ".in"}:
        return ConfigKind.REQUIREMENTS
    if suffix in {".yaml", ".yml"}:
        environment = re.search(
            r"(^|[-_.])(environment|env|conda|meta)([-_.]|$)", path.stem.lower()
        )
        return ConfigKind.ENVIRONMENT if environment else ConfigKind.YAML
    if suffix == ".toml" or name == "pipfile":
        return ConfigKind.TOML
    return ConfigKind.JSON if suffix in {".json", ".jsonc", ".jsonnet"} else ConfigKind.INI


def config_mentions(text: str, kind: ConfigKind, target: str) -> tuple[Mention, ...]:
    """What a settings file says about the old device.

    Parameters
    ----------
    text
        The file.
    kind
        How it is written; `config_kind` tells by its name.
    target
        `neutral`, `npu`, `xpu`, `hpu` or `mps`.

    Returns
    -------
    tuple[Mention, ...]
        In the order of the text; none of them is rewritten.
    """
    # Packages have names of their own, so lists of them are always read.
    settings = kind in {ConfigKind.YAML, ConfigKind.JSON}
    if settings and not (names_old_device(text) or _COMMANDS.search(text)):
        return ()
    reader = _Reader(text, kind, target, surroundings())
    for scalar in _READERS[kind](text):
        reader.scalar(scalar)
    reader.remaining()
    return tuple(sorted(reader.mentions.values(), key=lambda mention: mention.span))


@dataclass(slots=True)
class _Reader:
    text: str
    kind: ConfigKind
    target: str
    tables: Surroundings
    mentions: dict[Span, Mention] = field(default_factory=dict)

    def scalar(self, scalar: Scalar) -> None:
        """Decide about one key, value or comment."""
        value = self.text[scalar.span.start : scalar.span.end]
        if scalar.is_comment:
            self._each(scalar.span, "config/prose", Outcome.KEPT, "a comment")
        elif scalar.is_key:
            self._key(scalar.span, value)
        elif len(value) > _LONGEST_VALUE or not self._value(scalar, value):
            self._words(scalar, value)

    def remaining(self) -> None:
        """Names in what is neither key, value nor comment to the reader, such as a template's own language."""
        decided = Cover(self.mentions)
        for span in old_names(self.text, known=decided):
            self._list("config/unknown", span, _UNKNOWN)

    def _key(self, span: Span, key: str) -> None:
        variable = self.tables.variable(key.strip())
        if variable:
            self._variable(span, variable)
        elif key.lower() in _RESOURCE_KEYS:
            self._list("config/image", span, "asks the cluster for NVIDIA's devices")
        else:
            reason = "a key: its name belongs to the program that reads it"
            self._each(span, "config/key", Outcome.KEPT, reason)

    def _variable(self, span: Span, variable: Variable) -> None:
        reason = f"{variable.about}, and only for the old device"
        self._list("config/variable", span, reason, variable.replacement(self.target))

    def _value(self, scalar: Scalar, value: str) -> bool:
        """A value that is one thing as a whole; whether it was."""
        names = self.tables.backends
        if self._package(scalar, value):
            pass
        elif DEVICE.fullmatch(value):
            devices = {device: device + value[4:] for device in DEVICES}
            new = per_device(devices, self.target)
            self._list("config/device", scalar.span, "a device", new)
        elif BACKEND.fullmatch(value):
            backends = {device: backend_for(value, device, names[device]) for device in names}
            new = per_device(backends, self.target)
            self._list("config/backend", scalar.span, "a backend", new)
        elif _IMAGE.fullmatch(value):
            new = per_device(self.tables.images, self.target)
            self._list("config/image", scalar.span, "a container image for NVIDIA's devices", new)
        elif value.lower() == "nvidia" and scalar.key.lower() in _RUNTIME_KEYS:
            new = per_device(self.tables.containers, self.target)
            self._list("config/image", scalar.span, "gives NVIDIA's cards to a container", new)
        elif _DOTTED.fullmatch(value) or value.lower() == "apex":
            reason = "a name that the program looks up: CUDA's or apex's own"
            self._list("config/name", scalar.span, reason)
        else:
            return False
        return True

    def _package(self, scalar: Scalar, value: str) -> bool:
        line = self.kind is ConfigKind.REQUIREMENTS
        if not (line or self.kind is ConfigKind.ENVIRONMENT or _PACKAGE_KEYS.match(scalar.key)):
            return False
        match = _PROJECT.search(value) or _REQUIREMENT.fullmatch(value)
        thing = self.tables.package(match[1]) if match else None
        if thing:
            reason = f"{thing.about}: is not there for other devices"
            self._list("config/package", scalar.span, reason, thing.replacement(self.target))
        elif _BUILT_FOR_CUDA.search(value) or _PROJECT.search(value):
            new = per_device(self.tables.indexes, self.target)
            self._list("config/package", scalar.span, "is built for CUDA", new)
        elif value == "nvidia":
            self._list("config/package", scalar.span, "a channel with packages for CUDA")
        return thing is not None or scalar.span in self.mentions

    def _words(self, scalar: Scalar, value: str) -> None:
        """A value of several words: a variable with its value, a command, or prose."""
        assignment = _ASSIGNMENT.fullmatch(value)
        variable = self.tables.variable(assignment[1]) if assignment else None
        if variable:
            self._variable(scalar.span, variable)
        elif _PROSE_KEYS.fullmatch(scalar.key):
            self._each(scalar.span, "config/prose", Outcome.KEPT, "a description")
        elif re.search(r"\s", value.strip()):
            self._command(scalar.span, value)
        elif re.search(r"[/\\]|\.[A-Za-z]|\w[_-]\w", value) or not _DEVICE_WORD.search(value):
            self._each(scalar.span, "config/own-name", Outcome.KEPT, "a name of the project's own")
        else:
            self._each(scalar.span, "config/unknown", Outcome.LISTED, _UNKNOWN)

    def _command(self, span: Span, value: str) -> None:
        """What a shell would make of it; nothing but names without a meaning there is prose."""
        found = shell_mentions(_plain(value), self.target)
        telling = [mention for mention in found if mention.rule not in _TELLS_NOTHING]
        for mention in telling:
            place = mention.span.moved(span.start)
            new = mention.replacement or (_after(value, mention) if mention.edits else "")
            reason = mention.reason if mention.outcome is Outcome.LISTED else "a command"
            outcome = Outcome.KEPT if mention.outcome is Outcome.KEPT else Outcome.LISTED
            self._add(Mention("config/command", outcome, place, reason, new))
        covered = Cover(mention.span for mention in telling)
        for name in old_names(value, known=covered):
            place = name.moved(span.start)
            self._add(Mention("config/prose", Outcome.KEPT, place, "part of a text"))

    def _each(self, span: Span, rule: str, outcome: Outcome, reason: str) -> None:
        for name in old_names(self.text, span.start, span.end):
            self._add(Mention(rule, outcome, name, reason))

    def _list(self, rule: str, span: Span, reason: str, replacement: str = "") -> None:
        self._add(Mention(rule, Outcome.LISTED, span, reason, replacement))

    def _add(self, mention: Mention) -> None:
        self.mentions.setdefault(mention.span, mention)


_UNKNOWN = "names the old device: what the program makes of it cannot be told from the file"
_TELLS_NOTHING = frozenset(
    {"shell/unknown", "shell/own-name", "shell/prose", "shell/option", "shell/python"}
)


def _plain(value: str) -> str:
    """A value in which escaped quotes do not stop the shell's reader, as long as it was."""
    return value.replace('\\"', "  ").replace("\\n", " \n")


def _after(value: str, mention: Mention) -> str:
    edit = mention.edits[0]
    before = value[mention.span.start : edit.span.start]
    return before + edit.text + value[edit.span.end : mention.span.end]
