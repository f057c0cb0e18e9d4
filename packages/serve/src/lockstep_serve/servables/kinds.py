"""Choose the class that opens a file, by its suffix."""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import UsageError
from lockstep_serve.servable import Opener, Servable
from lockstep_serve.servables import python_callable


def _onnx(path: Path, device: str, threads: int) -> Servable:
    from lockstep_serve.servables.onnx import OnnxServable

    return OnnxServable(path, device, threads=threads)


def _exported(path: Path, device: str, threads: int) -> Servable:
    from lockstep_serve.servables.torch_files import open_exported, use_threads

    use_threads(threads)
    return open_exported(path, device)


def _scripted(path: Path, device: str, threads: int) -> Servable:
    from lockstep_serve.servables.torch_files import open_scripted, use_threads

    use_threads(threads)
    return open_scripted(path, device)


def _python(path: Path, device: str, threads: int) -> Servable:
    return python_callable.load_python(path, device)


OPENERS: dict[str, Opener] = {
    ".onnx": _onnx,
    ".pt2": _exported,
    ".pt": _scripted,
    ".ts": _scripted,
    ".py": _python,
}
"""What opens a file, by its suffix."""


def file_of(version_dir: Path) -> Path:
    """The file that is served of a version's folder: `servable.py` if there is one, else the one of a known kind.

    Raises
    ------
    UsageError
        If there is none, or which of several is meant is not said.
    """
    own = version_dir / python_callable.NAME
    if own.is_file():
        return own
    found = sorted(
        one for one in version_dir.iterdir() if one.suffix in OPENERS and one.suffix != ".py"
    )
    if len(found) > 1:
        found = [one for one in found if one.stem == "model"]
    if len(found) != 1:
        kinds = ", ".join(sorted(set(OPENERS) - {".py"}))
        raise UsageError(
            f"{version_dir}: holds {'no file' if not found else 'several files'} that can be served; put one"
            f" model.* of {kinds} there, or a {python_callable.NAME}"
        )
    return found[0]


def open_servable(path: Path, device: str, threads: int = 0) -> Servable:
    """Open a model.

    Parameters
    ----------
    path
        Its file, or the folder of a version.
    device
        Where it runs.
    threads
        Of a run; 0 for as many as its runtime takes. A `servable.py` sees to it itself.

    Raises
    ------
    UsageError
        If it cannot be served.
    """
    file = file_of(path) if path.is_dir() else path
    opener = OPENERS.get(file.suffix)
    if opener is None:
        raise UsageError(f"{file}: cannot be served; give one of {', '.join(sorted(OPENERS))}")
    return opener(file, device, threads)
