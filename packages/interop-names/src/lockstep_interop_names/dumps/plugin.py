"""Register readers of other tools' dumps."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.plugin import Reader, Task, Verb, hookimpl

if TYPE_CHECKING:
    import click

    from lockstep.recordings import NotSeen, ReadCall

FORMS = {
    "mindstudio-probe": "mindstudio_probe",
    "ptdbg_ascend": "ptdbg_ascend",
    "npy": "array_folder",
    "tensors": "tensor_folder",
    "ascend": "ascend_dump",
    "torch.utils.dumper": "torch_dumper",
    "mindspore": "mindspore_dump",
    "sglang": "sglang_dump",
    "onnxruntime": "onnxruntime_dump",
    "tensorflow-debugger": "tensorflow_debugger",
}
"""The forms that are read, each with its file in `readers`."""

_BY_PATTERN = frozenset({"tensors", "ascend", "onnxruntime"})
"""Those of which the user may tell more: how names are built, where a graph lies."""


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `convert`."""
    return [
        Verb(
            "convert",
            "Turn a dump of another tool into a recording, or back.",
            Task.LOOK,
            _convert,
            7,
            ("import", "transform"),
        ),
    ]


def _convert() -> click.Command:
    from lockstep_interop_names.dumps.convert_command import convert

    return convert


@hookimpl
def lockstep_readers() -> list[Reader]:
    """One of each form; its file is loaded when something is looked at that is no recording."""
    return [_reader(name, file) for name, file in FORMS.items()]


def _reader(name: str, file: str) -> Reader:
    def module() -> Any:
        return importlib.import_module(f"lockstep_interop_names.dumps.readers.{file}")

    def recognises(path: Path) -> bool:
        return bool(module().recognises(path))

    def read(path: Path) -> Iterable[ReadCall | NotSeen]:
        found: Iterable[ReadCall | NotSeen] = module().read(path)
        return found

    def read_by(path: Path, names: str) -> Iterable[ReadCall | NotSeen]:
        found: Iterable[ReadCall | NotSeen] = module().read_by(path, names)
        return found

    return Reader(name, recognises, read, read_by if name in _BY_PATTERN else None)
