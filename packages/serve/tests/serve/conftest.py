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
    """Models of several kinds, by this machine."""
    with serving(serve_models.of_the_clients(tmp_path_factory.mktemp("models"))) as one:
        yield one
