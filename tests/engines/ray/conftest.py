"""Two nodes of Ray on this machine, which compute pieces of comparisons.

Ray is no part of `make test`: `make test-cluster` installs it and runs these.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[3] / "packages" / "serve" / "tests" / "serve_cluster")
)

from ray_nodes import Nodes, nodes_of_ray


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take a minute, and Ray."""
    without = importlib.util.find_spec("ray") is None
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.exhaustive)
            item.add_marker(pytest.mark.skipif(without, reason="make test-cluster has Ray"))


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """A cluster of two nodes; whoever kills one adds another."""
    with nodes_of_ray(2) as found:
        yield found
