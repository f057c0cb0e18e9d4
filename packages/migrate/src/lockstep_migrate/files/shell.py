"""Shell scripts, Dockerfiles and Makefiles: what they say about the old device, line by line.

A script is not run and not taken apart, so its variables keep their meaning unknown. Two things are rewritten for a
vendor's target, being what scripts really hold: an environment variable that has another name there and the same
values, everywhere in the script, and `--option cuda` or `nccl`, if the script names them in no other way. All else is
listed or kept. For the neutral target a script stays as it is: a shell has no word for "the device that is here".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from lockstep_migrate.engine.spans import Cover
from lockstep_migrate.files.surroundings import (
    COMPUTED,
    FOREIGN,
    Variable,
    old_names,
    said_of,
    surroundings,
    word_on,
)
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import Edit, Mention, Outcome, Span

LONGEST_LINE = 4096
"""A longer line is data; it is searched for names and for nothing else."""

_WORTH_READING = re.compile(r"cu|nccl|nv|tensorrt|apex|gpu|nsys|tf32|install", re.IGNORECASE)
_IDENTIFIER = re.compile(r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]*(?![A-Za-z0-9_])")
DEVICE = re.compile(r"cuda(?::(?:\d+|\$\w+|\$\{\w+\}))?")
BACKEND = re.compile(r"(?:\w+:\w+,)*(?:\w+:)?nccl(?:,\w+:\w+)*")
DEVICE_OPTION = re.compile(
    rf"(?<![\w-])--?[A-Za-z][\w.-]*(?:=|[ \t]+)(?P<quote>\\?[\"']?)(?P<value>{DEVICE.pattern})(?P=quote)(?![\w:./-])"
)
BACKEND_OPTION = re.compile(
    rf"(?<![\w-])--?[A-Za-z][\w.-]*(?:=|[ \t]+)(?P<quote>\\?[\"']?)(?P<value>{BACKEND.pattern})(?P=quote)(?![\w:./-])"
)
_SET_VALUE = re.compile(r"[ \t]+(?P<value>[^\n]*)")
_TEXT = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|\"')"
_VALUE = re.compile(rf"=(?P<value>(?:{_TEXT}])*)")
_LOOSE_VALUE = re.compile(
    rf"(?:[\"'}}\]\\]*[ \t]*[:?+!=]{{0,3}}=[ \t]*|:?[-=])(?P<value>(?:{_TEXT}}}])*)"
)
"""Behind a variable in a Makefile, a test, a default (`${X:-1}`) or Python (`environ["X"] = ...`)."""
_SETTER = re.compile(r"(?:env|setenv|set(?:[ \t]+-\w+)+)\Z", re.IGNORECASE)
_FREE_WORD = re.compile(r"(?:(?<![\w./-])|(?<=:-))(?:cuda|nccl)(?![\w./-])")
_LOGICAL_LINE = re.compile(r"[ \t]*#[^\n]*|(?:\\\r?\n|[^\n])+")
_COMMENT = re.compile(r"(?:^|(?<=\s))#")
_DIRECTIVE = re.compile(r"#(?:SBATCH|PBS|BSUB|COBALT)\b|#\$ ")
_SAYING = re.compile(
    r"(?:^|[;&|({]|\bthen\b|\bdo\b|\belse\b)\s*@?(?:echo|printf|log|LABEL)\b[^;&|`]*"
)
_WORD = re.compile(r"[^\s\"'`;&|()<>]+")
_INSTALL = re.compile(
    r"(?s)\b(?:pip[23]?|conda|mamba|micromamba|apt|apt-get|yum|dnf|uv|poetry)\b.*?\b(?:install|add|create|update|remove)\b"
)
_REQUIREMENT = re.compile(r"(?:[\w-]+::)?([A-Za-z0-9][\w.-]*?)(?:\[[\w,-]*\])?(?:[=<>!~@].*)?")
_CONTAINER = re.compile(r"\b(?:docker|podman|nvidia-docker|singularity|apptainer|nerdctl)\b")
_SCHEDULER = re.compile(r"\b(?:sbatch|srun|salloc|qsub|bsub)\b")
_CLUSTER = re.compile(
    r"(?<![\w-])(?:--(?:gres|gpus?|gpu-bind|tres)[\w-]*(?:=\S*)?|n?gpus?=\S+|-gpu\b|-G\s*\d+)"
)
LIGHTNING = re.compile(r"(?<![A-Za-z])accelerator[\"']?[\s=,]+[\"']?gpu\b")
LIGHTNING_GPU = "Lightning's word for CUDA and for Apple's GPU: another device has none"
_CLUSTER_REASON = "asks the cluster for GPUs: what it calls the new device is its own"
_OWN_OPTION = "an option of the program's own: its name stays"
BUILT_FOR_CUDA = re.compile(
    r"https?://[^\s'\"]*(?:/|%2F)cu\d{2,3}[^\s'\"]*"
    r"|(?<![\w.-])[\w.-]+(?:\[[\w,-]*\])?(?:[=<>~!]=?[^\s'\"+]*)\+cu[\w{}$.]+"
)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What means the same wherever it stands: the rule, why it is listed, and what of the target to use instead."""

    rule: str
    found: re.Pattern[str]
    reason: str
    asks: str = ""


_EXTENSIONS = re.compile(
    r"--(?:cuda|fast_multihead_attn|cpp|xentropy|deprecated_fused_adam)_?ext\b"
)
_EVERYWHERE = (
    _Pattern(
        "shell/path",
        re.compile(
            r"/(?:usr/local|opt|usr/lib)/(?:cuda|nvidia)[\w./+-]*|/dev/nvidia[\w-]*"
            r"|(?<=\bload )[^\n;&|#]*\b(?i:cuda|cudnn|nccl|nvhpc)\b[\w./-]*"
        ),
        "a folder, device file or module of CUDA's",
        "folder",
    ),
    _Pattern(
        "shell/image",
        re.compile(
            r"(?<![\w./-])(?:nvcr\.io/[\w./:@${}-]+|(?:[\w.-]+/)*nvidia/cuda[\w./:@${}-]*"
            r"|(?:[\w.-]+/)+[\w.-]+:[\w.${}-]*(?:cuda|cu\d\d|gpu)[\w.${}-]*)"
        ),
        "a container image for NVIDIA's devices",
        "image",
    ),
    _Pattern(
        "shell/package",
        BUILT_FOR_CUDA,
        "packages that are built for CUDA",
        "package_index",
    ),
    _Pattern(
        "shell/package",
        _EXTENSIONS,
        "builds CUDA extensions",
    ),
    _Pattern(
        "shell/launcher",
        re.compile(r"(?<=nproc_per_node[= ])gpu\b|(?<=nproc-per-node[= ])gpu\b"),
        "the launcher counts the cards of the old device",
        "launcher_device",
    ),
    _Pattern(
        "shell/python",
        re.compile(r"[\w.]*\.cuda\b[\w.]*"),
        "Python code in a shell script is not migrated: keep it in a file of its own",
    ),
)  # fmt: skip
PROJECT = re.compile(
    r"(?:git\+)?(?:https?|ssh|git)(?:://|@)[\w@]*github\.com[/:]nvidia/([\w.-]+)", re.IGNORECASE
)


def shell_mentions(text: str, target: MigrationTarget) -> tuple[Mention, ...]:
    """What a shell script, Dockerfile or Makefile says about the old device.

    Returned: in the order of the text.
    """
    if not _WORTH_READING.search(text):
        return ()
    reader = _Reader(text, target)
    for match in _LOGICAL_LINE.finditer(text):
        line = Span(*match.span())
        if line.end - line.start <= LONGEST_LINE and _WORTH_READING.search(match[0]):
            reader.line(line, match[0])
    reader.options()
    reader.remaining()
    return tuple(sorted(reader.mentions.values(), key=lambda mention: mention.span))


@dataclass(slots=True)
class _Reader:
    text: str
    target: MigrationTarget
    mentions: dict[tuple[str, Span], Mention] = field(default_factory=dict)
    claimed: list[Span] = field(default_factory=list)
    prose: dict[Span, str] = field(default_factory=dict)

    def line(self, span: Span, line: str) -> None:
        """Read one line: its comment and messages, variables, and what means the same everywhere."""
        comment = _comment(line)
        if comment is not None:
            self.prose[Span(comment, len(line)).moved(span.start)] = "a comment"
        code = line if comment is None else line[:comment]
        for match in _SAYING.finditer(code):
            self.prose[Span(*match.span()).moved(span.start)] = "a message"
        if comment is not None and _DIRECTIVE.match(line, comment):
            self._each(_CLUSTER.finditer(line, comment), span, "shell/scheduler", _CLUSTER_REASON)
        for match in _IDENTIFIER.finditer(code):
            variable = surroundings().variable(match[0], self.target)
            if variable:
                self._variable(variable, Span(*match.span()).moved(span.start))
        self._commands(span, _SAYING.sub(lambda said: " " * len(said[0]), code))

    def _commands(self, span: Span, code: str) -> None:
        for pattern in _EVERYWHERE:
            if pattern.found is _EXTENSIONS and PROJECT.search(code):
                continue  # options of the project's own build
            new = said_of(self.target, partial(_word, pattern.asks))
            self._each(pattern.found.finditer(code), span, pattern.rule, pattern.reason, new)
        for match in PROJECT.finditer(code):
            thing = surroundings().package(match[1].lower().removesuffix(".git"))
            new = thing.replacement(self.target) if thing else ""
            self._each([match], span, "shell/package", "a project for NVIDIA's devices", new)
        if self.target.device != "mps":
            self._each(LIGHTNING.finditer(code), span, "shell/option", LIGHTNING_GPU)
        installing, container = _INSTALL.search(code), _CONTAINER.search(code)
        for match in _WORD.finditer(code):
            program = surroundings().programs.get(match[0].lstrip("@").rpartition("/")[2])
            package = _REQUIREMENT.fullmatch(match[0]) if installing else None
            thing = surroundings().package(package[1]) if package else None
            if installing and match.start() >= installing.end() and thing:
                reason = f"{thing.about}: is not there for other devices"
                self._each([match], span, "shell/package", reason, thing.replacement(self.target))
            elif program:
                reason, new = f"{program.about}, and no others", program.replacement(self.target)
                self._each([match], span, "shell/program", reason, new)
            elif container and re.match(r"--(?:gpus|nv|runtime=nvidia)\b", match[0]):
                new, reason = (
                    said_of(self.target, lambda one: one.container_options),
                    "gives NVIDIA's cards to the container",
                )
                option = re.compile(r"--gpus|\S+").match(code, match.start())
                self._each([option or match], span, "shell/container", reason, new)
            elif _SCHEDULER.search(code) and _CLUSTER.fullmatch(match[0]):
                self._each([match], span, "shell/scheduler", _CLUSTER_REASON)
            elif re.match(r"--?[\w-]*gpu", match[0], re.IGNORECASE):
                self._add(
                    "shell/option", Outcome.KEPT, Span(*match.span()).moved(span.start), _OWN_OPTION
                )

    def options(self) -> None:
        """`--option cuda`: rewritten where the script names devices and backends in no other way, else listed."""
        prose, taken = Cover(self.prose), Cover(self.claimed)
        patterns = (DEVICE_OPTION, BACKEND_OPTION)
        found = [
            match
            for pattern in patterns
            for match in pattern.finditer(self.text)
            if not prose.holds(match.start()) and not taken.holds(match.start("value"))
        ]
        plain = Cover(Span(*match.span("value")) for match in found)
        free = (match.start() for match in _FREE_WORD.finditer(self.text))
        only = all(plain.holds(at) or prose.holds(at) or taken.holds(at) for at in free)
        for match in found:
            place, value = Span(*match.span("value")), match["value"]
            backend = "nccl" in value
            rule, new = "shell/backend" if backend else "shell/device", word_on(value, self.target)
            other_number = self.target.single and new == self.target.device != "" and ":" in value
            if only and new and not other_number:
                edit, reason = Edit(place, new), "renamed for the target"
                self._add(rule, Outcome.REWRITTEN, place, reason, edit=edit)
            else:
                reason = (
                    "the program takes what it is given here, and the script may name it elsewhere"
                )
                instead = said_of(self.target, partial(word_on, value))
                self._add(rule, Outcome.LISTED, place, reason, instead)

    def remaining(self) -> None:
        """Every name that no rule has taken."""
        prose = Cover(self.prose)
        for span in old_names(self.text, known=Cover(self.claimed)):
            word = self.text[span.start : span.end]
            before, behind = (
                self.text[max(0, span.start - 2) : span.start],
                self.text[span.end : span.end + 1],
            )
            given = re.search(r"=[\"']?(?P<value>[\w:]+)\Z", word)
            device = given and (
                DEVICE.fullmatch(given["value"]) or BACKEND.fullmatch(given["value"])
            )
            own_variable = re.fullmatch(r"\w+=?[\d.]*", word) and (
                "=" in word + behind or before.endswith(("$", "${", "$("))
            )
            if prose.holds(span.start):
                self._add("shell/prose", Outcome.KEPT, span, "a comment or a message")
            elif word.startswith("--"):
                self._add("shell/option", Outcome.KEPT, span, _OWN_OPTION)
            elif own_variable:
                self._add("shell/own-name", Outcome.KEPT, span, "a variable of the script's own")
            elif not device and re.search(r"[/]|\.[A-Za-z]\w*$|\w[_-]\w", word):
                self._add("shell/own-name", Outcome.KEPT, span, "a name of the script's own")
            else:
                reason = "names the old device: what it means here cannot be told from the script"
                self._add("shell/unknown", Outcome.LISTED, span, reason)

    def _variable(self, variable: Variable, name: Span) -> None:
        """One use of a variable: renamed where the target's own reads the same value."""
        value = self._value_of(name)
        shown = Span(name.start, value.end()) if value else name
        text = value["value"].strip("'\"") if value else None
        new = self.target.environment.get(variable.name)
        if new is None:
            reason = f"{variable.about}, and only for the old device"
            instead = variable.replacement(self.target)
            self._add("shell/variable", Outcome.LISTED, shown, reason, instead)
        elif text is not None and variable.is_foreign(text):
            self._add("shell/value", Outcome.LISTED, shown, FOREIGN.format(new=new))
        else:
            computed = bool(text) and bool(variable.values) and bool(re.search(r"[$`]", text or ""))
            outcome = Outcome.DIFFERS if computed else Outcome.REWRITTEN
            reason = COMPUTED.format(new=new) if computed else f"the target's own name: {new}"
            self._add("shell/variable", outcome, shown, reason, edit=Edit(name, new))

    def _value_of(self, name: Span) -> re.Match[str] | None:
        """What a variable is given behind its name: by `=`, or by a blank behind `ENV`, `setenv`, `set -x`."""
        line = self.text.rfind("\n", 0, name.start) + 1
        setting = _SETTER.match(self.text[line : name.start].strip())
        patterns = (_VALUE, _SET_VALUE if setting else _LOOSE_VALUE)
        found = (pattern.match(self.text, name.end) for pattern in patterns)
        return next(filter(None, found), None)

    def _each(
        self,
        found: Iterator[re.Match[str]] | list[re.Match[str]],
        line: Span,
        rule: str,
        reason: str,
        new: str = "",
    ) -> None:
        for match in found:
            blank = len(match[0]) - len(match[0].lstrip())
            span = Span(match.start() + blank, match.end()).moved(line.start)
            self._add(rule, Outcome.LISTED, span, reason, new)

    def _add(
        self,
        rule: str,
        outcome: Outcome,
        span: Span,
        reason: str,
        new: str = "",
        edit: Edit | None = None,
    ) -> None:
        edits = (edit,) if edit else ()
        self.mentions.setdefault((rule, span), Mention(rule, outcome, span, reason, new, edits))
        self.claimed.append(span)


def _comment(line: str) -> int | None:
    """Where a line's comment begins: at a `#` behind a blank that is inside no quotes."""
    for match in _COMMENT.finditer(line):
        before = line[: match.start()]
        if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
            return match.start()
    return None


def _word(name: str, target: MigrationTarget) -> str:
    """What a target says under a name; nothing where none is asked for."""
    return getattr(target, name) if name else ""
