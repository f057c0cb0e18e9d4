"""`make bench-serve`: `lockstep serve` beside LitServe, MLServer and Ray Serve, one small model on one machine.

A perceptron of 64-256-256-10 in ONNX Runtime, one instance a request, JSON over kept connections. Peers come from PyPI
into environments of their own below .venv-serve-peers. Bars: 1.5 times the best peer's requests a second at one client
and at eight, and at 70 % of that load a p99 within three times the p50.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "wings" / "serve"))

import serve_models
from loads import Answered, closed_loop, open_loop
from servers import Server, serving

OURS = ("lockstep", "lockstep --runners 1")
PEERS = ("litserve", "mlserver", "ray")
LOAD = 0.7
BEGIN, END = "<!-- beside -->", "<!-- /beside -->"


@dataclass(frozen=True)
class Row:
    """One server: its start, its loads, what it takes."""

    name: str
    start_s: float
    one: Answered
    eight: Answered
    opened: Answered
    cpu_ms: float
    megabytes: float


def main() -> None:
    """Measure each, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, default=Path(".venv-serve-peers"))
    parser.add_argument("--seconds", type=float, default=3.0, help="Of each load.")
    parser.add_argument("--only", nargs="*", default=[*OURS, *PEERS])
    parser.add_argument("--docs", type=Path, help="Write the table into this page.")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-serve-") as name:
        scratch = Path(name)
        model = perceptron(scratch / "mlp.onnx")
        rows = []
        for one in chosen.only:
            with serving(one, model, chosen.environments.absolute(), scratch) as server:
                rows.append(measured(one, server, chosen.seconds))
            print(rows[-1], file=sys.stderr)
    text = table(rows)
    print(text)
    if chosen.docs is not None:
        page = chosen.docs.read_text()
        before, _, rest = page.partition(BEGIN)
        chosen.docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def measured(name: str, server: Server, seconds: float) -> Row:
    """The loads on one server, after half a second that is not counted."""
    closed_loop(server.connect, 8, seconds / 6)
    one = closed_loop(server.connect, 1, seconds)
    before = server.cpu_s()
    eight = closed_loop(server.connect, 8, seconds)
    cpu_ms = (server.cpu_s() - before) / eight.count * 1e3
    opened = open_loop(server.connect, LOAD * eight.rate, seconds)
    return Row(name, server.start_s, one, eight, opened, cpu_ms, server.megabytes())


def perceptron(path: Path) -> Path:
    """The model: 64-256-256-10."""
    from onnx import helper, numpy_helper

    draw, nodes, weights, last = np.random.default_rng(0), [], [], "x"
    sizes = (64, 256, 256, 10)
    for number, (wide, narrow) in enumerate(itertools.pairwise(sizes)):
        weight = (draw.standard_normal((wide, narrow)) / np.sqrt(wide)).astype("float32")
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        out = "y" if number == 2 else f"m{number}"
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [out]))
        if number < 2:
            nodes.append(helper.make_node("Relu", [out], [f"r{number}"]))
        last = f"r{number}"
    inputs = [serve_models.tensor("x", ["batch", 64])]
    return serve_models.write(
        path, nodes, inputs, [serve_models.tensor("y", ["batch", 10])], *weights
    )


def table(rows: list[Row]) -> str:
    """The rows as Markdown, with what the bars say of them."""
    lines = [
        (
            "| server | start s | 1 client: req/s, p50 / p99 / p99.9 ms | 8 clients | open, at 70 % of it"
            " | CPU ms a request | MB |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.name} | {one.start_s:.1f} | {_cell(one.one)} | {_cell(one.eight)} | {_cell(one.opened)}"
        f" | {one.cpu_ms:.2f} | {one.megabytes:.0f} |"
        for one in rows
    ]
    return "\n".join(
        [
            *lines,
            "",
            *_bars(rows),
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end.",
        ]
    )


def _cell(one: Answered) -> str:
    return f"{one.rate:,.0f}, {one.p50:.2f} / {one.p99:.2f} / {one.p999:.2f}"


def _bars(rows: list[Row]) -> list[str]:
    ours = next((one for one in rows if one.name == OURS[0]), None)
    peers = [one for one in rows if one.name in PEERS]
    if ours is None or not peers:
        return []
    said = []
    for words, rate in (
        ("one client", lambda row: row.one.rate),
        ("eight", lambda row: row.eight.rate),
    ):
        best = max(peers, key=rate)
        times = rate(ours) / rate(best)
        said.append(
            f"{times:.1f} x {best.name} with {words} ({'held' if times >= 1.5 else 'missed'}: 1.5)"
        )
    tail = ours.opened.p99 / ours.opened.p50
    said.append(f"p99 {tail:.1f} x p50 at 70 % load ({'held' if tail <= 3 else 'missed'}: 3)")
    return [f"Bars: {'; '.join(said)}."]


if __name__ == "__main__":
    main()
