"""Settings files: device strings, backends, variables, packages and images among their values, line by line.

What a program makes of a value cannot be told from the file, so nothing is rewritten: each place is listed with what
the target calls it. Keys are the program's own and are kept. YAML, JSON, TOML and INI are read alike, by what they
have in common: keys with `:` or `=` behind them, values in quotes or between commas and brackets, comments.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

from lockstep_migrate.engine.spans import Cover
from lockstep_migrate.files.choices import chosen
from lockstep_migrate.files.shell import (
    BACKEND,
    BACKEND_OPTION,
    BUILT_FOR_CUDA,
    DEVICE,
    DEVICE_OPTION,
    LIGHTNING,
    LIGHTNING_GPU,
    LONGEST_LINE,
    PROJECT,
)
from lockstep_migrate.files.surroundings import (
    backend_on,
    device_on,
    names_old_device,
    old_names,
    said_of,
    surroundings,
    word_on,
)
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import Mention, Outcome, Span


class ConfigKind(enum.Enum):
    """The kind of a settings file, if it decides the meaning of values."""

    SETTINGS = "settings"
    INI = "ini"
    ENVIRONMENT = "environment"
    REQUIREMENTS = "requirements"


_COMMENTS = {
    ConfigKind.INI: re.compile(r"(?:^|(?<=\s))[#;].*"),
    None: re.compile(r"(?:^|(?<=\s))(?:#|//).*"),
}
_ITEM = re.compile(
    r"\"(?P<double>(?:[^\"\\]|\\.)*)\"?|'(?P<single>[^']*)'?"
    r"|(?P<key>[\w./-]+(?: [\w./-]+)*)(?=[ \t]*:(?:\s|$))|(?P<plain>[^\s,\[\]{}\"':=|>][^,\[\]{}\"']*)"
)
_ASSIGNED = re.compile(r"[ \t]*(?P<key>[\w./-]+(?: [\w./-]+)*)(?=[ \t]*=(?!=))")
_ENTRY = re.compile(r"[ \t]*-[ \t]+(?P<entry>[^\s\"'\[{](?:[^\s:]|:(?=\S))*)[ \t]*")
_KEY_BEHIND = re.compile(r"[ \t]*[:=]")
_SECTION = re.compile(r"[ \t]*\[([^\[\]\"',]+)\][ \t]*")
_PACKAGE_KEYS = re.compile(r"requires?|dependenc|packages|conda|pip|channels", re.IGNORECASE)
_REQUIREMENT = re.compile(
    r"(?:[\w-]+::)?([A-Za-z0-9][\w.-]*?)(?:\[[\w,\s-]*\])?\s*(?:[=<>!~@;].*|(?<=\s)\d[\w.*]*)?"
)
_PACKAGE_FOR_CUDA = re.compile(
    r"\scuda[\d.]*\*?\Z|[+/-]cu\d{2,3}\b|=[\w.]*cuda[\d.]*\w*", re.IGNORECASE
)
_COMMANDS = re.compile(r"cu\d\d|nvcr\.io|gpu|nsys", re.IGNORECASE)
"""What tells of the old device in a command or image that does not name it."""

_DOTTED = re.compile(
    r"(?:torch\.(?:\w+\.)*cuda|apex)(?:\.\w+)+|torch\.cuda|apex(?:\.\w[\w.]*)?|[\w.]*FusedLayerNorm"
    r"|[\w.]*TransformerEngine\w*|(?:bitsandbytes|flash_attn|transformer_engine|triton|xformers)(?:\.\w+)+"
)
_LOOKED_UP = re.compile(
    r"(?:!?\w+:)?(?P<root>[A-Za-z_]\w*)(?:\.[A-Za-z_]\w*)*\.(?!(?:py|json|ya?ml|txt|md|sh|pth?)\Z)[A-Za-z_]\w*"
)
"""The dotted name of something that a program imports: `kernels.cuda_ops`, `!new:kernels.cuda_ops`."""
_PYTHON = re.compile(r"torch\.cuda\b[\w.]*|\.cuda\(")
_IMAGE = re.compile(
    r"(?:docker://)?(?:nvcr\.io/|(?:[\w.-]+/)*nvidia/(?:cuda|cudagl|pytorch|tensorflow|tensorrt|tritonserver)\b"
    r"|(?:[\w.-]+/)+[\w.-]+:[\w.-]*(?:cuda|cu\d\d|gpu))\S*",
    re.IGNORECASE,
)
_RESOURCES = frozenset({"nvidia.com/gpu", "nvidia.com/mig"})
_RUNTIMES = frozenset({"runtime", "driver", "runtimeclassname", "default-runtime", "accelerator"})
_HARDWARE = re.compile(r"(?:NVIDIA|nvidia)[-_ ][\w -]+\Z|--gpus\b|gpus?=")
"""Cards by their names, as clusters and clouds call them, and options of containers."""
_ACCELERATE_GPUS = "Accelerate's word for several CUDA devices: another device has its own"
_LIBRARY_WORDS = {
    ("accelerator", "gpu"): LIGHTNING_GPU,
    ("distributed_type", "MULTI_GPU"): _ACCELERATE_GPUS,
}
"""What a library calls the old device where the word names none, by key and value."""
_CLUSTER_KEY = re.compile(r"gres|(?:n|num_?)?gpus?[_-](?:per|count|num)\w*", re.IGNORECASE)
_COUNT = re.compile(r"(?:gpu:)?(?:\w+:)?[1-9]\d*\Z")
"""Keys by which a cluster is asked for GPUs, with their values: `gpus_per_node: 4`, `gres: gpu:1`."""
_PROSE_KEYS = re.compile(
    r"(description|help|comment|title|summary|text|note|doc|message|readme)s?$", re.IGNORECASE
)
_LAUNCHER = re.compile(r"nproc[-_]per[-_]node[= ](?P<value>gpu)\b")
_INTERPOLATED = r"\$\{[^\r\n]*[,:][ \t]*[\"']?"
"""What stands before the default of an interpolation: `${oc.env:DEVICE,cuda}`, `${DEVICE:cuda}`."""
_DEFAULT = re.compile(rf"{_INTERPOLATED}(?P<value>{DEVICE.pattern}|nccl)[\"']?[ \t]*\}}+\Z")
_DEVICE_SETTING = re.compile(
    rf"(?P<key>[\w.-]+)[\"']?[ \t]*[:=][ \t]*[\"']?(?:{_INTERPOLATED})?(?:{DEVICE.pattern}|nccl)[\"'}}]*[ \t]*"
    r"(?=[,}#;\r\n]|\Z)"
)
_UNKNOWN = "names the old device: what the program makes of it cannot be told from the file"


def config_kind(path: PurePosixPath) -> ConfigKind:
    """What a settings file is, by its name."""
    suffix = path.suffix.lower()
    if suffix in {".txt", ".in"}:
        return ConfigKind.REQUIREMENTS
    if suffix in {".yaml", ".yml"}:
        words = r"(^|[-_.])(environment|env|conda|meta)([-_.]|$)"
        environment = re.search(words, path.stem.lower())
        return ConfigKind.ENVIRONMENT if environment else ConfigKind.SETTINGS
    settings = suffix in {".toml", ".json", ".jsonc", ".jsonnet"} or path.name.lower() == "pipfile"
    return ConfigKind.SETTINGS if settings else ConfigKind.INI


def config_mentions(
    text: str, kind: ConfigKind, target: MigrationTarget, own: Collection[str] = ()
) -> tuple[Mention, ...]:
    """What a settings file says about the old device.

    `kind`: what it is; `config_kind` tells by its name. `own`: the project's modules, and the keys that it asks for.
    Returned: in the order of the text; none of them is rewritten.
    """
    reader = _Reader(text, kind, target, own)
    for match in re.finditer(r"[^\r\n]+", text):
        if match.end() - match.start() <= LONGEST_LINE:
            reader.line(match.start(), match[0])
    decided = Cover(reader.mentions)
    for span in old_names(text, known=decided):
        reader.list("config/unknown", span, _UNKNOWN)
    return tuple(sorted(reader.mentions.values(), key=lambda mention: mention.span))


def device_settings(text: str) -> Iterator[str]:
    """The keys of a settings file whose whole value is the old device or its backend."""
    for match in _DEVICE_SETTING.finditer(text):
        yield match["key"].rpartition(".")[2]


@dataclass(slots=True)
class _Reader:
    text: str
    kind: ConfigKind
    target: MigrationTarget
    own: Collection[str] = ()
    mentions: dict[Span, Mention] = field(default_factory=dict)
    key: str = ""
    """The key whose value is being read, or in whose list it stands."""

    def line(self, start: int, line: str) -> None:
        """Decide about the keys, values and comment of one line."""
        comment = _comment(_COMMENTS.get(self.kind, _COMMENTS[None]), line)
        code = line[:comment]
        self._each(Span(start + len(code), start + len(line)), "config/prose", "a comment")
        section = _SECTION.fullmatch(code)
        if section:
            self.key = section[1]
            self._each(Span(*section.span(1)).moved(start), "config/key", _OWN_KEY)
        elif self.kind is ConfigKind.REQUIREMENTS:
            self._value(start + len(code) - len(code.lstrip()), code.strip())
        elif entry := _ENTRY.fullmatch(code):
            self._value(start + entry.start("entry"), entry["entry"])
        else:
            for place, item, is_key in _items(code):
                self._key(start + place, item) if is_key else self._value(start + place, item)

    def _key(self, start: int, key: str) -> None:
        span = Span(start, start + len(key))
        self.key = key
        if self._variable(span, key):
            return
        if key.lower() in _RESOURCES:
            self.list("config/image", span, "asks the cluster for NVIDIA's devices")
        else:
            self._each(span, "config/key", _OWN_KEY)

    def _value(self, start: int, value: str) -> None:
        """Decide about a value: one thing as a whole, or words."""
        span = Span(start, start + len(value))
        if self._package(span, value) or self._variable(span, value.partition("=")[0]):
            return
        if default := _DEFAULT.match(value):
            self._value(start + default.start("value"), default["value"])
        elif DEVICE.fullmatch(value):
            new = said_of(self.target, lambda one: device_on(one, value))
            self.list("config/device", span, "a device", new)
        elif BACKEND.fullmatch(value):
            new = said_of(self.target, lambda one: backend_on(one, value))
            self.list("config/backend", span, "a backend", new)
        elif _IMAGE.fullmatch(value):
            reason = "a container image for NVIDIA's devices"
            self.list("config/image", span, reason, said_of(self.target, lambda one: one.image))
        elif value.lower() == "nvidia" and self.key.lower() in _RUNTIMES:
            reason = "gives NVIDIA's cards to a container"
            new = said_of(self.target, lambda one: one.container_options)
            self.list("config/image", span, reason, new)
        elif _CLUSTER_KEY.fullmatch(self.key) and self.key not in self.own and _COUNT.match(value):
            self.list(
                "config/scheduler",
                span,
                "asks for GPUs: which devices that means is the reader's to say",
            )
        elif self._is_hardware(value):
            self.list("config/image", span, "asks for NVIDIA's devices by name")
        elif self.target.device != "mps" and (
            about := _LIBRARY_WORDS.get((self.key.lower(), value))
        ):
            self.list("config/device", span, about)
        elif choice := chosen(self.target, self.key, value):
            self.list("config/choice", span, choice.reason, choice.instead)
        elif _DOTTED.fullmatch(value) or self._is_of_another(value):
            reason = (
                "a name that the program looks up: it stands for something that is made for CUDA"
            )
            self.list("config/name", span, reason)
        else:
            self._words(span, value)

    def _is_of_another(self, value: str) -> bool:
        """Whether a value is the dotted name of something for the old device that is not the project's."""
        name = _LOOKED_UP.fullmatch(value)
        is_own = name is None or name["root"] in self.own
        return not is_own and names_old_device(value) and self.kind is ConfigKind.SETTINGS

    def _is_hardware(self, value: str) -> bool:
        """Whether a value is a card of NVIDIA's by its name, or an option that gives cards to a container."""
        is_program = value in surroundings().programs
        return (
            self.kind is ConfigKind.SETTINGS
            and not is_program
            and _HARDWARE.match(value) is not None
        )

    def _variable(self, span: Span, name: str) -> bool:
        variable = surroundings().variable(name, self.target)
        if variable:
            reason = f"{variable.about}, and only for the old device"
            self.list("config/variable", span, reason, variable.replacement(self.target))
        return variable is not None

    def _package(self, span: Span, value: str) -> bool:
        packages = self.kind in {ConfigKind.REQUIREMENTS, ConfigKind.ENVIRONMENT}
        program = value in surroundings().programs
        plain = re.search(r"[-_]", value) is not None and not program
        known = surroundings().package(value) if plain else None
        if not (packages or known or _PACKAGE_KEYS.search(self.key)):
            return False
        match = PROJECT.search(value) or _REQUIREMENT.fullmatch(value)
        thing = surroundings().package(match[1].lower().removesuffix(".git")) if match else None
        if thing:
            reason = f"{thing.about}: is not there for other devices"
            self.list("config/package", span, reason, thing.replacement(self.target))
        elif _PACKAGE_FOR_CUDA.search(value) or PROJECT.search(value):
            new = said_of(self.target, lambda one: one.package_index)
            self.list("config/package", span, "is built for CUDA", new)
        elif re.match(r"nvidia(?:/label/|\Z)", value):
            self.list("config/package", span, "a channel with packages for CUDA")
        return span in self.mentions

    def _words(self, span: Span, value: str) -> None:
        """A value of several words is a command where it holds what a shell would be told, else prose."""
        if not (names_old_device(value) or _COMMANDS.search(value)):
            return
        if _PROSE_KEYS.search(self.key):
            self._each(span, "config/prose", "a description")
            return
        for pattern in (DEVICE_OPTION, BACKEND_OPTION, _LAUNCHER):
            for match in pattern.finditer(value):
                place, word = Span(*match.span("value")).moved(span.start), match["value"]
                new = said_of(self.target, partial(word_on, word))
                self.list("config/command", place, "a command is told the old device here", new)
        for match in BUILT_FOR_CUDA.finditer(value):
            new = said_of(self.target, lambda one: one.package_index)
            place = Span(*match.span()).moved(span.start)
            self.list("config/command", place, "packages that are built for CUDA", new)
        for match in LIGHTNING.finditer(value) if self.target.device != "mps" else ():
            place = Span(*match.span()).moved(span.start)
            self.list("config/device", place, LIGHTNING_GPU)
        for match in _PYTHON.finditer(value):
            place = Span(*match.span()).moved(span.start)
            self.list("config/command", place, "Python code in a settings file is not migrated")
        for match in re.finditer(r"[\w/-]+", value):
            place = Span(*match.span()).moved(span.start)
            program = surroundings().programs.get(match[0].rpartition("/")[2])
            variable = surroundings().variable(match[0], self.target)
            if program or variable:
                found = program or variable
                reason = f"{found.about}, and only for the old device"  # type: ignore[union-attr]
                self.list("config/command", place, reason, found.replacement(self.target))  # type: ignore[union-attr]
        if re.search(r"\s", value):
            self._each(span, "config/prose", "part of a text")
        elif re.search(r"[/\\]|\.[A-Za-z]|\w[_-]\w|[A-Za-z](?:nvidia|cuda)", value, re.IGNORECASE):
            self._each(span, "config/own-name", "a name of the project's own")

    def _each(self, span: Span, rule: str, reason: str) -> None:
        """Keep each name of the old device in a stretch that nothing else has decided about."""
        inside = Cover(place for place in self.mentions if span.contains(place))
        for name in old_names(self.text, span.start, span.end, known=inside):
            self.mentions.setdefault(name, Mention(rule, Outcome.KEPT, name, reason))

    def list(self, rule: str, span: Span, reason: str, replacement: str = "") -> None:
        """List a place, unless it is decided already."""
        self.mentions.setdefault(span, Mention(rule, Outcome.LISTED, span, reason, replacement))


_OWN_KEY = "a key: its name belongs to the program that reads it"


def _comment(pattern: re.Pattern[str], line: str) -> int:
    """Where a line's comment begins; its length where there is none."""
    for match in pattern.finditer(line):
        before = line[: match.start()]
        if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
            return match.start()
    return len(line)


def _items(code: str) -> Iterator[tuple[int, str, bool]]:
    """The keys and values of a line: where each begins, its text, and whether it is a key."""
    assigned = _ASSIGNED.match(code)
    if assigned:
        yield assigned.start("key"), assigned["key"], True
    for match in _ITEM.finditer(code, assigned.end() if assigned else 0):
        group = match.lastgroup or "plain"
        text = match[group]
        stripped = text.strip().removeprefix("- ").strip()
        place = match.start(group) + text.index(stripped) if stripped else match.start(group)
        quoted = group in {"double", "single"}
        yield (
            place,
            text if quoted else stripped,
            group == "key" or (quoted and _KEY_BEHIND.match(code, match.end()) is not None),
        )
