"""Two nodes of Ray on this machine, and servers that have their models run there.

Ray is no part of `make test`: `make test-serve-cluster` installs it and runs these.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
pytest.register_assert_rewrite("test_serve_clients")

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # at the loopback address alone

import serve_models  # noqa: E402
from serve_process import Served, serving  # noqa: E402

OBJECT_STORE_BYTES = 100 << 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take minutes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """A cluster of two nodes; tests may add others, and end these."""
    cluster_utils = pytest.importorskip(
        "ray.cluster_utils", reason="make test-serve-cluster has Ray"
    )
    cluster = cluster_utils.Cluster()
    for _ in range(2):
        cluster.add_node(
            num_cpus=16, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False
        )
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def served(nodes: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The models that the tests of the embedded engine have."""
    folder = serve_models.of_the_clients(tmp_path_factory.mktemp("models"))
    with serving(folder, "--engine", "ray", "--address", nodes.address) as one:
        yield one
