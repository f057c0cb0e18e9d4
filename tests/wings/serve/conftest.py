"""A server over a repository of models, as a command."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import serve_models
from serve_process import Served, serving


@pytest.fixture(autouse=True)
def _log_is_heard() -> Iterator[None]:
    """Whatever an earlier test's library has turned off in this process."""
    log, level = logging.getLogger("lockstep.serve"), logging.root.manager.disable
    kept = log.disabled, log.propagate, log.level
    logging.disable(logging.NOTSET)
    log.disabled, log.propagate = False, True
    log.setLevel(logging.WARNING)
    yield
    log.disabled, log.propagate = kept[:2]
    log.setLevel(kept[2])
    logging.disable(level)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Models of several kinds, one with two versions, one entry that is no model."""
    folder = tmp_path_factory.mktemp("models")
    serve_models.linear(folder / "linear" / "1" / "model.onnx")
    serve_models.linear(folder / "linear" / "3" / "model.onnx", scale=2.0)
    serve_models.linear(folder / "by_two" / "1" / "model.onnx", batch=2)
    serve_models.over_the_batch(folder / "over_the_batch" / "1" / "model.onnx")
    serve_models.logarithm(folder / "logarithm" / "1" / "model.onnx")
    serve_models.words(folder / "words" / "1" / "model.onnx")
    serve_models.of_every_kind(folder / "every_kind" / "1" / "model.onnx")
    broken = folder / "broken" / "1" / "model.onnx"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x08\x01no model")
    with serving(folder) as one:
        yield one
