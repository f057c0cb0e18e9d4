"""Random numbers in a model: seeded while it is measured, so that it draws the same ones before and after."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lockstep_deploy.engines import engine

_DRAWING = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)


def seed_draws(proto: Any) -> list[str]:
    """Give each node that draws a seed, where it has none; returns the names of their results."""
    nodes = [
        node
        for node in proto.graph.node
        if node.op_type in _DRAWING and "seed" not in {one.name for one in node.attribute}
    ]
    for number, node in enumerate(nodes):
        node.attribute.append(engine("onnx").helper.make_attribute("seed", float(number)))
    return [node.output[0] for node in nodes]


def unseed_draws(proto: Any, results: Collection[str]) -> None:
    """Take these seeds away again: who runs the model draws other numbers each time."""
    for node in proto.graph.node:
        for one in list(node.attribute) if node.output and node.output[0] in results else ():
            if one.name == "seed":
                node.attribute.remove(one)
