"""The libraries that this wing stands on, each loaded when a verb runs that needs it."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lockstep.errors import UsageError

_CHATTY = ("torch", "onnxscript", "onnx_ir", "onnx", "onnxruntime")


def engine(name: str, extra: str = "deploy") -> Any:
    """A library by the name that it is imported by.

    name: As in "onnxruntime".
    extra: The extra of Lockstep that installs it.

    Raises UsageError if it is not installed.
    """
    try:
        with _root_logger_as_it_is():
            return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{name} is not installed here: pip install 'lockstep-numerics[{extra}]'"
        ) from error


@contextmanager
def _root_logger_as_it_is() -> Iterator[None]:
    """Undo what a library sets up for the logs of all others as it is imported (`logging.basicConfig`)."""
    root = logging.root
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


def bfloat16() -> Any:
    """The dtype that onnx has for bfloat16 in NumPy."""
    return np.dtype(engine("ml_dtypes").bfloat16)


@contextmanager
def as_sentence(
    what: str, advice: str = "", where: Callable[[str], str] = lambda said: ""
) -> Iterator[None]:
    """Turn whatever a library raises into one sentence; libraries raise types of their own, without a common one.

    what: What could not be done, as in "model.onnx: cannot be loaded".
    advice: What to do about it.
    where: Which part of a model what the library says is of, as a clause.

    Raises UsageError with the first line of what the library says.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        said = first_line(error)
        raise UsageError(
            f"{what} ({said}){where(str(error))}" + (f"; {advice}" if advice else "")
        ) from error


@contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Keep what libraries print, log and warn of from the user's screen; what matters becomes a sentence."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    loggers = [logging.root] + [
        one
        for name, one in logging.root.manager.loggerDict.items()
        if isinstance(one, logging.Logger) and name.split(".")[0] in _CHATTY
    ]
    kept = [(one, one.propagate, list(one.handlers)) for one in loggers]
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        warnings.simplefilter("ignore")
        for one in loggers:
            one.handlers, one.propagate = [handler], False
        try:
            yield said
        finally:
            for one, propagate, handlers in kept:
                one.handlers, one.propagate = handlers, propagate


def first_line(error: BaseException, most: int = 300) -> str:
    """The first line that an exception says, at most so many letters; its class where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    return said if len(said) <= most else said[: most - 3] + "..."
