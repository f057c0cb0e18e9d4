"""Two nodes of Ray on this machine, and servers that have their models run there.

Ray is no part of `make test`: `make test-serve-cluster` installs it and runs these.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
pytest.register_assert_rewrite("test_serve_clients")

import serve_models  # noqa: E402
from ray_nodes import Nodes, nodes_of_ray  # noqa: E402
from serve_process import Served, serving  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take minutes, and Ray."""
    here = [one for one in items if Path(__file__).parent in one.path.parents]
    without = importlib.util.find_spec("ray") is None
    for item in here:
        item.add_marker(pytest.mark.exhaustive)
        item.add_marker(pytest.mark.skipif(without, reason="make test-serve-cluster has Ray"))


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """A cluster of two nodes; whoever kills one adds another."""
    with nodes_of_ray(2) as found:
        yield found


@pytest.fixture(scope="session")
def served(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The models that the tests of the embedded engine have."""
    folder = serve_models.of_the_clients(tmp_path_factory.mktemp("models"))
    with serving(folder, "--engine", "ray", "--cluster", nodes.address) as one:
        yield one
