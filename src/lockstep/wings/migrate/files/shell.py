"""Shell scripts, Dockerfiles and Makefiles: what they say about the old device.

A script is not run, so its variables keep their meaning unknown: on a vendor's target names and device strings are
rewritten where their meaning is plain, everything else is listed. For the neutral target a script stays as it is and
each place is listed with what the devices call it, since a shell has no word for "the device that is here".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.wings.migrate.engine.spans import Cover
from lockstep.wings.migrate.files.shell_words import Heredoc, json_words, take_apart
from lockstep.wings.migrate.files.surroundings import (
    DEVICES,
    Surroundings,
    Variable,
    names_old_device,
    old_names,
    per_device,
    surroundings,
)
from lockstep.wings.migrate.plan import Edit, Mention, Outcome, Span

RULES: Mapping[str, str] = {
    "shell/variable": "An environment variable of CUDA or NCCL: renamed where the target has the same, else listed.",
    "shell/value": "The value of a renamed variable that the target may read differently.",
    "shell/device": "A device string as the value of an option or variable.",
    "shell/backend": "The collective backend as the value of an option or variable.",
    "shell/launcher": "A launcher asked for one process a GPU.",
    "shell/program": "A program that exists for NVIDIA's devices only.",
    "shell/package": "A package, index or project that is built for CUDA.",
    "shell/image": "A container image with CUDA.",
    "shell/container": "An option that gives GPUs to a container.",
    "shell/scheduler": "GPUs asked of a cluster's scheduler.",
    "shell/path": "A folder, device file or module of the CUDA toolkit.",
    "shell/python": "Python code inside a shell script.",
    "shell/option": "An option of the program's own: its name stays.",
    "shell/own-name": "A name of the script's own: a variable, a file.",
    "shell/prose": "A comment or a message.",
    "shell/unknown": "A mention whose meaning cannot be told from the script.",
}

_LONGEST_WORD = 1000
"""A longer word is data; it is searched for names and for nothing else."""

_WORTH_READING = re.compile(r"cu|nccl|nv|tensorrt|apex|gpu|nsys|tf32", re.IGNORECASE)
_IDENTIFIER = re.compile(r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]*(?![A-Za-z0-9_])")
_INDEX = r"(?::(?:\d+|\$\w+|\$\{\w+\}))?"
DEVICE = re.compile(rf"cuda{_INDEX}")
BACKEND = re.compile(r"(?:\w+:\w+,)*(?:\w+:)?nccl(?:,\w+:\w+)*")
_OPTION_VALUE = re.compile(r"(?:[-+~]{0,2}[\w./-]+)[:?+]?=(['\"]?)(?P<value>[^'\"]*)\1", re.DOTALL)
_DEFAULT = re.compile(r"\$\{\w+:?[-=+](?P<value>[^{}$]*)\}")
_OPTION = re.compile(r"-{1,2}[A-Za-z][\w.-]*")
_QUOTED = re.compile(r"(?:[A-Za-z_]\w*\+?=)?(['\"])")
_PATH = re.compile(r"/(?:usr/local|opt|usr/lib)/(?:cuda|nvidia)[\w./+-]*|/dev/nvidia[\w-]*")
_IMAGE = re.compile(
    r"(?<![\w./-])(?:nvcr\.io/[\w./:@${}-]+|(?:[\w.-]+/)*nvidia/cuda[\w./:@${}-]*|pytorch/pytorch:[\w.${}-]*cuda[\w.${}-]*)"
)
_INDEX_URL = re.compile(r"https?://[^\s'\"]*(?:/|%2F)cu\d{2,3}[^\s'\"]*")
_LOCAL_VERSION = re.compile(
    r"(?<![\w.-])[\w.-]+(?:\[[\w,-]*\])?(?:[=<>~!]=?[^\s'\"+]*)\+cu[\w{}$.]+"
)
_PROJECT = re.compile(
    r"(?:git\+)?(?:https?|ssh|git)(?:://|@)[\w@]*github\.com[/:]nvidia/([\w.-]+)", re.I
)
_REQUIREMENT = re.compile(r"(?:[\w-]+::)?([A-Za-z0-9][\w.-]*?)(?:\[[\w,-]*\])?(?:[=<>!~@ ].*)?")
_BUILD_OPTION = re.compile(
    r"--(?:cuda|fast_multihead_attn|cpp|xentropy|deprecated_fused_adam)_?ext\b"
)
_GPU_OPTION = re.compile(r"--?[\w-]*gpu[\w-]*(?:=.*)?", re.IGNORECASE)
_SCHEDULER = re.compile(
    r"--(?:gres|gpus?|gpu-bind|tres)[\w-]*(?:=\S*)?|\bn?gpus?=\S+|-gpu\b|-G\s*\d+"
)
_PROCESSES = re.compile(r"--nproc[-_]per[-_]node(?:=(gpu))?")
_INSTALLERS = frozenset(
    {
        "pip",
        "pip2",
        "pip3",
        "conda",
        "mamba",
        "micromamba",
        "apt",
        "apt-get",
        "yum",
        "dnf",
        "uv",
        "poetry",
    }
)
_INSTALLING = frozenset({"install", "add", "create", "update", "remove", "uninstall"})
_CONTAINERS = frozenset(
    {"docker", "podman", "nvidia-docker", "singularity", "apptainer", "nerdctl"}
)
_SCHEDULERS = frozenset({"sbatch", "srun", "salloc", "qsub", "bsub"})
_TESTS = frozenset(
    {
        "[",
        "[[",
        "test",
        "case",
        "for",
        "select",
        "set",
        "in",
        "if",
        "elif",
        "while",
        "until",
        "then",
    }
)
_SAYING = frozenset({"echo", "printf", "LABEL", "MAINTAINER", "#", "log", "@echo"})
_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
_DEEPEST = 3


def shell_mentions(text: str, target: str) -> tuple[Mention, ...]:
    """What a shell script, Dockerfile or Makefile says about the old device.

    Parameters
    ----------
    text
        The script.
    target
        `neutral`, `npu`, `xpu`, `hpu` or `mps`.

    Returns
    -------
    tuple[Mention, ...]
        In the order of the text.
    """
    if not _WORTH_READING.search(text):
        return ()
    reader = _Reader(text, target, surroundings(), budget=4 * len(text))
    reader.part(Span(0, len(text)), depth=0)
    reader.remaining()
    return tuple(sorted(reader.mentions.values(), key=lambda mention: mention.span))


@dataclass(slots=True)
class _Reader:
    text: str
    target: str
    tables: Surroundings
    mentions: dict[tuple[str, Span], Mention] = field(default_factory=dict)
    claimed: list[Span] = field(default_factory=list)
    comments: list[Span] = field(default_factory=list)
    messages: list[Span] = field(default_factory=list)
    assigned: dict[int, Span] = field(default_factory=dict)
    budget: int = 0
    """Characters in quotes that may still be read as commands; quotes in quotes are read more than once."""

    # ------------------------------------------------------------------------------- structure

    def part(self, span: Span, depth: int) -> None:
        """Read a stretch of shell text: the whole, a here-document, or a quoted command."""
        script = take_apart(self.text[span.start : span.end])
        self.comments += [comment.moved(span.start) for comment in script.comments]
        for command in script.commands:
            self._command([word.moved(span.start) for word in command.words], depth)
        for heredoc in script.heredocs:
            words = tuple(word.moved(span.start) for word in heredoc.words)
            self._heredoc(Heredoc(heredoc.body.moved(span.start), words), depth)

    def _heredoc(self, heredoc: Heredoc, depth: int) -> None:
        words = [self._raw(word) for word in heredoc.words]
        if any(_PYTHON.fullmatch(word) or word.endswith(".py") for word in words):
            self._python(heredoc.body)
        elif depth < _DEEPEST:
            self.part(heredoc.body, depth + 1)

    def _command(self, words: Sequence[Span], depth: int) -> None:
        self._nested(words, depth)
        words = [word for word in words if word.end - word.start <= _LONGEST_WORD]
        if not words:
            return
        raw = [self._raw(word) for word in words]
        if raw[0] in {"CMD", "ENTRYPOINT", "SHELL"} and raw[1:] and raw[1].startswith("["):
            whole = Span(words[1].start, words[-1].end)
            self._command(tuple(json_words(self.text, whole)), depth)
            return
        self.assigned.update((word.start, word) for word in words)
        bases = [word.strip("@\"'").rsplit("/", 1)[-1] for word in raw]
        if any(base in _SAYING for base in bases[:2]):
            self.messages += words
        else:
            self._tools(words, raw, bases)
            self._values(words, raw, bases)

    def _nested(self, words: Sequence[Span], depth: int) -> None:
        """Commands in quotes, `bash -c "..."` or `ARGS="--device cuda"`, and Python after `-c`."""
        before, python = "", False
        for span in words:
            word = self.text[span.start : min(span.end, span.start + _LONGEST_WORD)]
            if before in _SAYING:
                return
            quoted = _QUOTED.match(word)
            if quoted and self.text[span.end - 1] == quoted[1]:
                self._quoted(Span(span.start + quoted.end(), span.end - 1), before, python, depth)
            python = python or _PYTHON.fullmatch(word) is not None
            before = word

    def _quoted(self, inner: Span, before: str, python: bool, depth: int) -> None:
        if python and before == "-c":
            self._python(inner)
        elif depth < _DEEPEST and inner.end - inner.start <= self.budget:
            self.budget -= inner.end - inner.start
            if re.search(r"\s", self._raw(inner)):
                self.part(inner, depth + 1)

    # ---------------------------------------------------------------------------------- values

    def _values(self, words: Sequence[Span], raw: Sequence[str], bases: Sequence[str]) -> None:
        """Device strings and backends: values of options and variables, and what is compared."""
        compared = bool(_TESTS.intersection(bases))
        for number, (span, word) in enumerate(zip(words, raw, strict=True)):
            for default in _DEFAULT.finditer(word):
                self._value(_part_of(span, default, "value"))
            assigned = _OPTION_VALUE.fullmatch(word)
            if assigned:
                self._value(_part_of(span, assigned, "value"))
                continue
            before = raw[number - 1] if number else ""
            quotes = 1 if word[:1] in "'\"" and len(word) > 1 and word[-1] == word[0] else 0
            plain = compared or _OPTION.fullmatch(before) or before.endswith("=")
            pattern = len(words) == 1 and self.text[span.end : span.end + 1] in {")", "|"}
            if plain or pattern:
                self._value(Span(span.start + quotes, span.end - quotes))

    def _value(self, span: Span) -> None:
        value = self._raw(span)
        if DEVICE.fullmatch(value):
            self._rewritable(
                "shell/device",
                span,
                {device: device + value[4:] for device in DEVICES},
                "the program takes the device that it is given here",
            )
        elif BACKEND.fullmatch(value):
            names = self.tables.backends
            new = {device: backend_for(value, device, names[device]) for device in names}
            self._rewritable("shell/backend", span, new, "the backend belongs to the old device")

    def _rewritable(self, rule: str, span: Span, new: Mapping[str, str], reason: str) -> None:
        if self.target in new:
            self._rewrite(rule, span, span, new[self.target], "renamed for the target")
        else:
            self._list(rule, span, reason, per_device(new, self.target))

    # ----------------------------------------------------------------------------------- tools

    def _tools(self, words: Sequence[Span], raw: Sequence[str], bases: Sequence[str]) -> None:
        installing = _INSTALLERS.intersection(bases) and _INSTALLING.intersection(bases)
        container = bool(_CONTAINERS.intersection(bases[:3]))
        scheduler = bool(_SCHEDULERS.intersection(bases[:3]))
        module = bases[0] in {"module", "ml"}
        for number, (span, word) in enumerate(zip(words, raw, strict=True)):
            self._anywhere(span, word)
            if installing and number:
                self._package(span, word, raw[number - 1])
            elif module and number and names_old_device(word):
                self._list_path(span)
            elif bases[number] in self.tables.programs:
                self._program(span, bases[number])
            self._processes(words, raw, number)
            self._gpu_option(span, word, container, scheduler)
        if raw[0] == "FROM":
            self._base_image(words, raw)

    def _anywhere(self, span: Span, word: str) -> None:
        """What means the same in every command: paths, images, indexes, projects, build options."""
        for match in _PATH.finditer(word):
            self._list_path(_part_of(span, match))
        for match in _IMAGE.finditer(word):
            reason = "a container image for NVIDIA's devices"
            self._list("shell/image", _part_of(span, match), reason, self._per(self.tables.images))
        built = (*_INDEX_URL.finditer(word), *_LOCAL_VERSION.finditer(word)) if "cu" in word else ()
        for match in built:
            reason = "packages that are built for CUDA"
            new = self._per(self.tables.indexes)
            self._list("shell/package", _part_of(span, match), reason, new)
        for match in _PROJECT.finditer(word):
            thing = self.tables.package(match[1].lower().removesuffix(".git"))
            reason = "a project for NVIDIA's devices"
            new = thing.replacement(self.target) if thing else ""
            self._list("shell/package", _part_of(span, match), reason, new)
        for match in _BUILD_OPTION.finditer(word):
            self._list("shell/package", _part_of(span, match), "builds CUDA extensions")

    def _package(self, span: Span, word: str, before: str) -> None:
        quotes = 1 if word[:1] in "'\"" else 0
        match = _REQUIREMENT.fullmatch(word[quotes : len(word) - quotes])
        thing = self.tables.package(match[1]) if match else None
        if thing:
            reason = f"{thing.about}: is not there for other devices"
            self._list("shell/package", span, reason, thing.replacement(self.target))
        elif before in {"-c", "--channel"} and word == "nvidia":
            self._list("shell/package", span, "a channel with packages for CUDA")

    def _program(self, span: Span, name: str) -> None:
        thing = self.tables.programs[name]
        new = thing.replacement(self.target)
        self._list("shell/program", span, f"{thing.about}, and no others", new)

    def _processes(self, words: Sequence[Span], raw: Sequence[str], number: int) -> None:
        match = _PROCESSES.fullmatch(raw[number])
        following = raw[number + 1] if number + 1 < len(raw) else ""
        if match and match[1]:
            span = _part_of(words[number], match, 1)
        elif match and following == "gpu":
            span = words[number + 1]
        else:
            return
        reason = "the launcher counts the cards of the old device"
        self._rewritable("shell/launcher", span, self.tables.launcher_devices, reason)

    def _gpu_option(self, span: Span, word: str, container: bool, scheduler: bool) -> None:
        if container and (word.split("=")[0] in {"--gpus", "--nv"} or word in {"--runtime=nvidia"}):
            new = self._per(self.tables.containers)
            self._list("shell/container", span, "gives NVIDIA's cards to the container", new)
        elif scheduler and _SCHEDULER.fullmatch(word):
            self._list("shell/scheduler", span, _ASKS_CLUSTER)
        elif _GPU_OPTION.fullmatch(word):
            self._keep("shell/option", span, "an option of the program's own: its name stays")

    def _base_image(self, words: Sequence[Span], raw: Sequence[str]) -> None:
        for span, word in zip(words[1:], raw[1:], strict=True):
            if not word.startswith("--"):
                if names_old_device(word):
                    new = self._per(self.tables.images)
                    self._list("shell/image", span, "a container image for NVIDIA's devices", new)
                return

    def _python(self, span: Span) -> None:
        for name in old_names(self.text, span.start, span.end):
            reason = "Python code inside a shell script: move it to a file, or change it by hand"
            self._list("shell/python", name, reason)
        self.claimed.append(span)

    # ------------------------------------------------------------------------------- variables

    def remaining(self) -> None:
        """Variables everywhere, then every name that no rule has taken."""
        comments = Cover(self.comments)
        for match in _IDENTIFIER.finditer(self.text):
            variable = self.tables.variable(match[0])
            if variable and not comments.holds(match.start()):
                self._variable(variable, Span(*match.span()))
        for comment in self.comments:
            self._directive(comment)
        taken, messages = Cover(self.claimed), Cover(self.messages)
        for span in old_names(self.text, known=taken):
            if comments.holds(span.start):
                self._keep("shell/prose", span, "a comment")
            elif messages.holds(span.start):
                self._keep("shell/prose", span, "a message")
            else:
                self._leftover(span)

    def _variable(self, variable: Variable, name: Span) -> None:
        assignment = self.text[name.end : name.end + 1] == "="
        shown = self.assigned.get(name.start, name) if assignment else name
        new = variable.rename.get(self.target)
        if new is None:
            reason = f"{variable.about}, and only for the old device"
            self._list("shell/variable", shown, reason, variable.replacement(self.target))
        else:
            self._rewrite("shell/variable", shown, name, new, f"the target's own name: {new}")
            if shown != name:
                self._check_value(shown, Span(name.end + 1, shown.end), variable.values, new)
        self.claimed.append(name)

    def _check_value(self, shown: Span, value: Span, pattern: str, name: str) -> None:
        text = self._raw(value).strip("'\"")
        if pattern and not re.search(r"[$`]", text) and not re.fullmatch(pattern, text):
            reason = f"{name} may read this value differently: check it"
            self._list("shell/value", value if text else shown, reason)

    # ------------------------------------------------------------------------------- leftovers

    def _directive(self, comment: Span) -> None:
        """`#SBATCH --gres=gpu:4` and its like are no comments to the cluster."""
        text = self._raw(comment)
        if re.match(r"#(?:SBATCH|PBS|BSUB|COBALT)\b|#\$ ", text):
            for match in _SCHEDULER.finditer(text):
                self._list("shell/scheduler", _part_of(comment, match), _ASKS_CLUSTER)

    def _leftover(self, span: Span) -> None:
        word = self._raw(span)
        if word.startswith("--"):
            self._keep("shell/option", span, "an option of the program's own: its name stays")
        elif re.fullmatch(r"\w+=?|\w+=[\d.]+", word) and self._is_variable(span, word):
            self._keep("shell/own-name", span, "a variable of the script's own")
        elif re.search(r"[/]|\.[A-Za-z]\w*$", word) or re.search(r"\w[_-]\w", word):
            self._keep("shell/own-name", span, "a name of the script's own")
        else:
            reason = "names the old device: what it means here cannot be told from the script"
            self._list("shell/unknown", span, reason)

    def _is_variable(self, span: Span, word: str) -> bool:
        before = self.text[max(0, span.start - 2) : span.start]
        return "=" in word + self.text[span.end : span.end + 1] or before.endswith(
            ("$", "${", "$(")
        )

    # -------------------------------------------------------------------------------- mentions

    def _raw(self, span: Span) -> str:
        return self.text[span.start : span.end]

    def _per(self, table: Mapping[str, str]) -> str:
        return per_device(table, self.target)

    def _list_path(self, span: Span) -> None:
        reason = "a folder, device file or module of CUDA's"
        self._list("shell/path", span, reason, self._per(self.tables.paths))

    def _add(self, mention: Mention, claim: Span) -> None:
        self.mentions.setdefault((mention.rule, mention.span), mention)
        self.claimed.append(claim)

    def _list(self, rule: str, span: Span, reason: str, replacement: str = "") -> None:
        self._add(Mention(rule, Outcome.LISTED, span, reason, replacement), span)

    def _keep(self, rule: str, span: Span, reason: str) -> None:
        self._add(Mention(rule, Outcome.KEPT, span, reason), span)

    def _rewrite(self, rule: str, shown: Span, span: Span, new: str, reason: str) -> None:
        edits = (Edit(span, new),)
        self._add(Mention(rule, Outcome.REWRITTEN, shown, reason, edits=edits), span)


_ASKS_CLUSTER = "asks the cluster for GPUs: what it calls the new device is its own"


def backend_for(value: str, device: str, backend: str) -> str:
    """A backend string for another device: `cpu:gloo,cuda:nccl` has a device in it, too."""
    return re.sub(r"\bnccl\b", backend, re.sub(r"\bcuda:", f"{device}:", value))


def _part_of(span: Span, match: re.Match[str], group: int | str = 0) -> Span:
    return Span(*match.span(group)).moved(span.start)
