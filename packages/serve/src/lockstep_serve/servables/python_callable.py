"""A Python file of the user's own: `def load(version_dir)` gives the servable."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.terminal import message
from lockstep_serve.servable import Servable, Signature

NAME = "servable.py"
"""What such a file is called in a model's folder."""


def load_python(path: Path, device: str) -> Servable:
    """Run a file of Python and have its `load` open the model; it is the user's own code, and trusted as such.

    Parameters
    ----------
    path
        The file. Its `load(version_dir)`, or `load(version_dir, device)`, returns a `Servable`.
    device
        For `load`, where it takes one.

    Raises
    ------
    UsageError
        If the file fails, has no `load`, or gives no servable.
    """
    spec = importlib.util.spec_from_file_location(f"lockstep_servable_{path.parent.name}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: cannot be imported; give a file of Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path}: fails as it is imported ({type(error).__name__}: {message(str(error))})"
        ) from error
    load = getattr(module, "load", None)
    if not callable(load):
        raise UsageError(f"{path}: has no `def load(version_dir)`, which gives the servable")
    takes_device = load.__code__.co_argcount > 1 if hasattr(load, "__code__") else False
    try:
        servable: Servable = load(path.parent, device) if takes_device else load(path.parent)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path}: its load fails ({type(error).__name__}: {message(str(error))})"
        ) from error
    if not isinstance(getattr(servable, "signature", None), Signature):
        raise UsageError(f"{path}: what its load gives has no `signature`; see docs/serve.md")
    return servable
