"""Keeps the tests of this wing quick."""

from __future__ import annotations

import gc

import pytest
import torch._dynamo  # noqa: F401 - its objects are to be set aside too


@pytest.fixture(scope="session", autouse=True)
def _set_imported_objects_aside() -> None:
    """Recording looks for optimizers among all objects; those of torch itself need no looking."""
    gc.collect()
    gc.freeze()
