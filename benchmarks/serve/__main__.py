"""`make bench-serve`: `lockstep serve` beside other servers and beside one by hand, on one machine.

Two perceptrons in ONNX Runtime, on one thread, one instance a request, JSON over kept connections: 64-256-256-10 for
all servers, and 64-3072-3072-10, whose run takes a millisecond or more, for Lockstep and for 25 lines of FastAPI. These
have no batches, and run the model on FastAPI's threads, or on its event loop. The servers are all there at once and are
measured in turn, round by round, as a machine's load changes from second to second: rates are medians of the rounds,
ratios the medians of those of one round, percentiles are of all requests. Peers come from PyPI into environments of
their own below .venv-serve-peers.

Bars: 1.5 times the best peer's requests a second at one client and at eight; 1.0 times the better of the two by hand at
one client, and 1.3 times at eight where a run takes a millisecond; at 70 % of the load at eight a p99 within three
times the p50; health within 100 ms beside 41 MB of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "serve" / "tests" / "serve"))

import serve_models
from loads import Answered, Connection, closed_loop, health, open_loop, together
from servers import Server, serving

OURS = ("lockstep", "lockstep --runners 1")
BY_HAND = ("by hand, threads", "by hand, loop")
PEERS = ("litserve", "mlserver", "ray")
SMALL, WIDE = (64, 256, 256, 10), (64, 3072, 3072, 10)
LOAD = 0.7
LARGE_ROWS = 32_000
"""Of 64 numbers, some 20 characters each: 41 MB."""
BEGIN, END = "<!-- beside -->", "<!-- /beside -->"


@dataclass(frozen=True)
class Row:
    """One server: its start, its loads (each by round), what it takes."""

    name: str
    start_s: float
    one: list[Answered]
    eight: list[Answered]
    opened: list[Answered]
    cpu_ms: float
    megabytes: float


def main() -> None:
    """Measure each, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, default=Path(".venv-serve-peers"))
    parser.add_argument("--seconds", type=float, default=0.25, help="Of each load in each round.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=[*OURS, *BY_HAND, *PEERS])
    parser.add_argument("--docs", type=Path, help="Write the tables into this page.")
    chosen = parser.parse_args()
    environments = chosen.environments.absolute()
    with tempfile.TemporaryDirectory(prefix="lockstep-serve-") as name:
        scratch, parts = Path(name), []
        for words, sizes, bars in (("small", SMALL, _bars), ("wide", WIDE, _bars_of_wide)):
            model = perceptron(scratch / f"{words}.onnx", sizes)
            names = [one for one in chosen.only if words == "small" or one in (OURS[0], *BY_HAND)]
            rows, said = measured(
                names, model, environments, scratch, chosen.seconds, chosen.rounds
            )
            parts += [table("-".join(map(str, sizes)), rows), "", *bars(rows, said), ""]
    text = "\n".join([*parts, f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end."])
    print(text)
    if chosen.docs is not None:
        page = chosen.docs.read_text()
        before, _, rest = page.partition(BEGIN)
        chosen.docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def measured(
    names: list[str], model: Path, environments: Path, scratch: Path, seconds: float, rounds: int
) -> tuple[list[Row], list[str]]:
    """The loads on each server, in turn, after some that are not counted; and how health fares beside a large body."""
    loads: dict[str, dict[str, list[Answered]]] = defaultdict(lambda: defaultdict(list))
    cpu_s: dict[str, float] = defaultdict(float)
    with contextlib.ExitStack() as stack:
        servers = {
            one: stack.enter_context(serving(one, model, environments, scratch)) for one in names
        }
        for server in servers.values():
            closed_loop(server.connect, 8, seconds / 2)
        for _ in range(rounds):
            for name, server in servers.items():
                loads[name]["one"].append(closed_loop(server.connect, 1, seconds))
                before = server.cpu_s()
                loads[name]["eight"].append(closed_loop(server.connect, 8, seconds))
                cpu_s[name] += server.cpu_s() - before
        for _ in range(rounds):
            for name, server in servers.items():
                rate = LOAD * together(loads[name]["eight"]).rate
                loads[name]["opened"].append(open_loop(server.connect, rate, seconds))
        rows = [
            Row(
                name,
                server.start_s,
                **loads[name],
                cpu_ms=cpu_s[name] / sum(one.count for one in loads[name]["eight"]) * 1e3,
                megabytes=server.megabytes(),
            )
            for name, server in servers.items()
        ]
        said = [_beside_a_large_body(servers[OURS[0]])] if OURS[0] in servers else []
    return rows, said


def _beside_a_large_body(server: Server) -> str:
    """How long health takes while 41 MB of JSON are read, run and answered, three times."""
    rows = np.random.default_rng(0).standard_normal((LARGE_ROWS, 64))
    one = {
        "name": "x",
        "datatype": "FP32",
        "shape": list(rows.shape),
        "data": rows.ravel().tolist(),
    }
    body = json.dumps({"inputs": [one]}).encode()
    found: list[float] = []
    for _ in range(3):
        connection = Connection(server.port, server.path, body)
        asking = threading.Thread(target=connection.ask)
        asking.start()
        while asking.is_alive():
            found.append(health(server.port) * 1e3)
            time.sleep(0.002)
        connection.close()
    held = "held" if max(found) <= 100 else "missed"
    return (
        f"Health beside {len(body) / 1e6:.0f} MB of JSON: p50 {np.median(found):.1f} ms, at most"
        f" {max(found):.0f} ms of {len(found)} ({held}: 100)."
    )


def perceptron(path: Path, sizes: tuple[int, ...]) -> Path:
    """The model."""
    from onnx import helper, numpy_helper

    draw, nodes, weights, last = np.random.default_rng(0), [], [], "x"
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


def table(name: str, rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        (
            f"| {name} | start s | 1 client: req/s, p50 / p99 / p99.9 ms | 8 clients | open, at 70 % of it"
            " | CPU ms a request | MB |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.name} | {one.start_s:.1f} | {_cell(one.one)} | {_cell(one.eight)} | {_cell(one.opened)}"
        f" | {one.cpu_ms:.2f} | {one.megabytes:.0f} |"
        for one in rows
    ]
    return "\n".join(lines)


def _cell(rounds: list[Answered]) -> str:
    one = together(rounds)
    tail = " / ".join(f"{one.percentile(percent):.2f}" for percent in (50, 99, 99.9))
    return f"{one.rate:,.0f}, {tail}"


Load = Callable[[Row], list[Answered]]


def _ratio(ours: Row, others: list[Row], load: Load, words: str, bar: float | None) -> str:
    """Ours by the best of others, as the median of the ratios of one round."""
    best = max(others, key=lambda row: together(load(row)).rate)
    pairs = zip(load(ours), load(best), strict=True)
    times = float(np.median([mine.rate / theirs.rate for mine, theirs in pairs]))
    held = "no bar" if bar is None else f"{'held' if times >= bar else 'missed'}: {bar}"
    return f"{times:.2f} x {best.name} with {words} ({held})"


def _all_bars(
    rows: list[Row], wanted: list[tuple[tuple[str, ...], float | None, float | None]]
) -> list[str]:
    ours = next((one for one in rows if one.name == OURS[0]), None)
    if ours is None:
        return []
    said = []
    for names, one, eight in wanted:
        others = [row for row in rows if row.name in names]
        if others:
            said.append(_ratio(ours, others, lambda row: row.one, "one client", one))
            said.append(_ratio(ours, others, lambda row: row.eight, "eight", eight))
    opened = together(ours.opened)
    tail = opened.percentile(99) / opened.percentile(50)
    said.append(f"p99 {tail:.1f} x p50 at 70 % load ({'held' if tail <= 3 else 'missed'}: 3)")
    return [f"Bars: {'; '.join(said)}."]


def _bars(rows: list[Row], said: list[str]) -> list[str]:
    return [*_all_bars(rows, [(PEERS, 1.5, 1.5), (BY_HAND, 1.0, None)]), *said]


def _bars_of_wide(rows: list[Row], said: list[str]) -> list[str]:
    return _all_bars(rows, [(BY_HAND, 1.0, 1.3)])


if __name__ == "__main__":
    main()
