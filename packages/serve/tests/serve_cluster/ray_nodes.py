"""Nodes of Ray on this machine, in a process of their own: `python ray_nodes.py`, asked and answering by lines.

`add` begins a node and tells its id, `kill ID` ends one with all that runs there; the end of the input ends all. The
first line told is the cluster's address.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import Any

OBJECT_STORE_BYTES = 100 << 20


@dataclass
class Nodes:
    """A cluster: its address, and its nodes, the first of which is the head."""

    process: Popen[str]
    address: str
    ids: list[str]

    def add(self) -> None:
        """Begin one more, once the others know of it."""
        self.ids.append(self._asked("add"))

    def kill(self, node: str) -> None:
        """End one with all that runs there."""
        self.ids.remove(self._asked(f"kill {node}"))

    def _asked(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return _line(self.process)


@contextmanager
def nodes_of_ray(count: int) -> Iterator[Nodes]:
    """Have nodes until the block ends."""
    with Popen([sys.executable, __file__], stdin=PIPE, stdout=PIPE, text=True) as process:
        nodes = Nodes(process, _line(process), [])
        nodes.ids.append(_line(process))
        for _ in range(count - 1):
            nodes.add()
        yield nodes
        assert process.stdin is not None
        process.stdin.close()


def _line(process: Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # at the loopback address alone
    from ray.cluster_utils import Cluster

    cluster, nodes = Cluster(), {}

    def add() -> Any:
        node = cluster.add_node(
            num_cpus=16, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False
        )
        nodes[node.node_id] = node
        cluster.wait_for_nodes()
        return node

    first = add()
    print(cluster.address, first.node_id, sep="\n", flush=True)
    for line in sys.stdin:
        what, _, node = line.strip().partition(" ")
        if what == "add":
            print(add().node_id, flush=True)
        else:
            cluster.remove_node(nodes[node], allow_graceful=False)
            print(node, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    _main()
