"""What each rule does, in words: for `lockstep migrate rules`, and for the help of reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lockstep.hookspecs import MigrationTarget
from lockstep.wings.migrate import advice, distributed, tensorflow
from lockstep.wings.migrate.files import config, framework, native, notebook, shell
from lockstep.wings.migrate.torch import visible_device
from lockstep.wings.migrate.torch.table import Action, Entry, table_of

_PYTHON: Mapping[str, str] = {
    "kernels/triton": "A kernel written in Triton, which needs a Triton for the device.",
    "keywords/load": "Where torch.load puts what was saved on a GPU.",
    "keywords/pin_memory": "Pinned memory is torch's own on every device.",
    "leftovers/code": "CUDA in a text that a program reads, such as a command or a kernel.",
    "leftovers/flag": "A flag of the project's own, such as --cuda: it keeps its name.",
    "leftovers/import": "An import of code that is made for CUDA.",
    "leftovers/message": "A message of CUDA that a program compares with: other devices word it otherwise.",
    "leftovers/neutral": "Code that asks for the device as it runs.",
    "leftovers/own-name": "A name of the project's own that has CUDA in it.",
    "leftovers/string": "A text with CUDA in it whose use cannot be told.",
    "leftovers/text": "A text for people.",
    "leftovers/torch": "A name of torch for CUDA that no table knows.",
    "methods/cuda": "model.cuda() moves to the device that is there.",
    "methods/cuda-ambiguous": "cuda() on an object that may be of a class with a cuda method of its own.",
    "methods/cuda-index": "cuda(index) whose index cannot be told from a stream or a flag.",
    "methods/cuda-scripted": "cuda() in code that TorchScript compiles, which knows no device names.",
    "methods/cuda-star": "cuda(*arguments), whose arguments are unseen.",
    "methods/cuda-uncalled": "The method cuda passed on as a value.",
    "methods/default-type": "A default tensor type becomes a default device and a default dtype.",
    "methods/definition": "A method cuda of the project's own, renamed with every call of it.",
    "methods/is-cuda": "Whether a tensor is on the device.",
    "methods/own": "A method or attribute of the project's own.",
    "methods/storage": "Storages are moved by tensors.",
    "methods/type": "type() with a CUDA tensor type becomes a device and a dtype.",
    "profiler/use-cuda": "The profiler's use_cuda says which device to time.",
    "strings/backend": "The name of the collective backend.",
    "strings/device": "A device as a text.",
    "strings/device-format": "A device that is put together by a format.",
    "strings/device-template": "A text that becomes a device once it is filled in.",
    "strings/environment": "An environment variable of CUDA or NCCL.",
    "strings/own-key": "A key of the project's own: dictionaries, columns, results.",
    "strings/tensor-type": "A tensor type as a text.",
    "strings/text": "A text for people.",
    "user/ArgsModifyRule": "Your rule: another argument.",
    "user/FuncNameModifyRule": "Your rule: another function name.",
    "user/ModuleNameModifyRule": "Your rule: another module name.",
}

_TOPICS: tuple[Mapping[str, str], ...] = (
    shell.RULES,
    notebook.RULES,
    config.RULES,
    native.RULES,
    tensorflow.RULES,
    advice.RULES,
    distributed.RULES,
    visible_device.RULES,
    framework.RULES,
)


@dataclass(frozen=True, slots=True)
class RuleWords:
    """A rule and what it does."""

    rule: str
    words: str


class Catalogue:
    """All rules that hold for one target.

    Parameters
    ----------
    target
        The device that scripts are written for.
    """

    def __init__(self, target: MigrationTarget) -> None:
        topics = dict(_PYTHON)
        for topic in _TOPICS:
            topics.update(topic)
        names = {entry.rule: _words(entry) for entry in table_of(target).entries}
        self._words = {**dict(sorted(topics.items())), **dict(sorted(names.items()))}

    def __iter__(self) -> Iterator[RuleWords]:
        """Every rule, by topic, the tables of names last."""
        return (RuleWords(rule, words) for rule, words in self._words.items())

    def words(self, rule: str) -> str:
        """What a rule does; for an identifier that is not known, what its topic does, or nothing."""
        while rule:
            if rule in self._words:
                return self._words[rule]
            rule = rule.rpartition("/")[0]
        return ""


def _words(entry: Entry) -> str:
    verb = {
        Action.RENAME: f"becomes {entry.becomes}",
        Action.SIMILAR: f"becomes {entry.becomes} with --similar, which is a risk",
        Action.LIST: f"is listed; instead: {entry.becomes}" if entry.becomes else "is listed",
        Action.KEEP: "is kept",
        Action.ALIAS: f"is the same as {entry.becomes}",
    }[entry.action]
    return f"{entry.name} {verb}: {entry.reason}" if entry.reason else f"{entry.name} {verb}"
