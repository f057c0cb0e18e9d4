"""The commands that have tfdbg write each tensor into a file: `pt conv1/Conv2D:0 -n 0 -w conv1_Conv2D.0.1718.npy`.

The names of the files are those that `readers/array_folder.py` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LISTED = re.compile(r"\[\s*[\d.]+\]\s+\S+\s+\S+\s+(\S+:\d+)\s*")
"""A line of `lt`: time, size, operator, name of the tensor."""
_NAME = re.compile(r"[^\s\"'<>|;]+:\d+")
_LONGEST_BYTES = 255
"""Of a file's name, on the systems that TensorFlow 1 runs on (NAME_MAX)."""


@dataclass(frozen=True, slots=True)
class Print:
    """One tensor, and the file that it goes to."""

    tensor: str
    file: Path

    @property
    def command(self) -> str:
        """As it is typed."""
        return f"pt {self.tensor} -n 0 -w {self.file}"


@dataclass(frozen=True, slots=True)
class Prints:
    """A list of commands, and the tensors that none could be made for, each with the reason."""

    commands: tuple[Print, ...]
    left_out: tuple[tuple[str, str], ...]


def tensor_names(text: str) -> list[str]:
    """The tensors in what `lt` lists, or in a list of names alone, each once, in their order.

    >>> tensor_names("t (ms)  Size  Op type  Tensor name\\n[0.125]  178  Conv2D  conv1/Conv2D:0\\n")
    ['conv1/Conv2D:0']
    """
    lines = text.splitlines()
    listed = [found[1] for line in lines if (found := _LISTED.fullmatch(line))]
    alone = [line.strip() for line in lines if _NAME.fullmatch(line.strip())]
    return list(dict.fromkeys(listed or alone))


def prints_of(tensors: Iterable[str], stamp: int, folder: Path | None = None) -> Prints:
    """A command for each tensor.

    stamp: Microseconds since 1970; the same in all names, as one step was run.
    folder: Where the files go; None for where the debugged program runs.
    """
    commands: dict[str, Print] = {}
    left_out: list[tuple[str, str]] = []
    for tensor in tensors:
        name = f"{tensor.replace('/', '_').replace(':', '.')}.{stamp}.npy"
        if not _NAME.fullmatch(tensor) or name.startswith("."):
            left_out.append((tensor, "it is no name of a tensor"))
        elif len(name.encode()) > _LONGEST_BYTES:
            left_out.append((tensor, "the name of its file would be too long"))
        elif name in commands:
            left_out.append((tensor, f"its file would be that of {commands[name].tensor}"))
        else:
            commands[name] = Print(tensor, (folder or Path()) / name)
    return Prints(tuple(commands.values()), tuple(left_out))


__all__ = ["Print", "Prints", "prints_of", "tensor_names"]
