"""`make soak-serve`: clients of both kinds ask without pause while runners are killed; no accepted request may be lost.

A request that is refused because too many wait was not accepted. Every answer is held against the product of matrices.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "serve" / "tests" / "serve"))

import serve_models

from lockstep_serve.protocol import messages

WEIGHT = (np.arange(4)[:, None] - np.arange(3)[None]).astype("float32")


def main() -> int:
    """Run it; exit code 1 where a request was lost or answered wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=600.0)
    parser.add_argument("--every", type=float, default=20.0, help="Seconds between two kills.")
    parser.add_argument("--clients", type=int, default=4)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-soak-") as name:
        folder = Path(name)
        serve_models.linear(folder / "linear" / "1" / "model.onnx")
        return soak(folder, chosen.seconds, chosen.every, chosen.clients)


def soak(folder: Path, seconds: float, every: float, clients: int) -> int:
    command = [
        sys.executable,
        "-m",
        "lockstep",
        "serve",
        str(folder),
        "--runners",
        "2",
        "--http",
        "0",
        "--grpc",
        "0",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    addresses = dict(server.stdout.readline().split() for _ in range(2))
    ended, found = threading.Event(), Counter[str]()
    asks = [_asker_http(addresses["http"]), _asker_grpc(addresses["grpc"])]
    threads = [
        threading.Thread(target=_ask_on, args=(asks[number % 2], ended, found, number))
        for number in range(clients)
    ]
    for one in threads:
        one.start()
    kills, megabytes, end = 0, [], time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(every, max(end - time.monotonic(), 0)))
        megabytes.append(_resident_megabytes(server.pid))
        runners = _children(server.pid)
        if runners and time.monotonic() < end:
            os.kill(random.choice(runners), signal.SIGKILL)
            kills += 1
    ended.set()
    for one in threads:
        one.join()
    server.send_signal(signal.SIGINT)
    server.wait(30)
    print(
        f"{found['right']} answered, {found['refused']} refused, {found['wrong']} wrong, {found['lost']} lost;"
        f" {kills} runners killed; server {megabytes[0]:.0f} MB at first, {megabytes[-1]:.0f} MB at the end"
    )
    for text in [one for one in found if one.startswith("said: ")]:
        print(text)
    return 1 if found["wrong"] or found["lost"] or not found["right"] else 0


def _ask_on(ask: Any, ended: threading.Event, found: Counter[str], seed: int) -> None:
    draw = np.random.default_rng(seed)
    while not ended.is_set():
        x = draw.integers(-9, 9, (int(draw.integers(1, 40)), 4)).astype("float32")
        try:
            answer = ask(x)
        except Exception as error:
            found["lost"] += 1
            found[f"said: {error!s:.200}"] += 1
            continue
        kind = (
            "refused"
            if answer is None
            else "right"
            if np.array_equal(answer, x @ WEIGHT)
            else "wrong"
        )
        found[kind] += 1


def _asker_http(address: str) -> Any:
    host = address.removeprefix("http://")

    def ask(x: Any) -> Any:
        body = {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": list(x.shape),
                    "data": x.ravel().tolist(),
                }
            ]
        }
        connection = http.client.HTTPConnection(host, timeout=60)
        try:
            connection.request("POST", "/v2/models/linear/infer", json.dumps(body))
            answer = connection.getresponse()
            told = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status == 429:
            return None
        if answer.status != 200:
            raise RuntimeError(told["error"])
        return np.array(told["outputs"][0]["data"], "float32").reshape(-1, 3)

    return ask


def _asker_grpc(address: str) -> Any:
    channel = grpc.insecure_channel(address)
    response = messages.message_class("ModelInferResponse")
    call = channel.unary_unary(
        f"/{messages.SERVICE}/ModelInfer",
        request_serializer=messages.message_class("ModelInferRequest").SerializeToString,
        response_deserializer=response.FromString,
    )

    def ask(x: Any) -> Any:
        one = {"name": "x", "datatype": "FP32", "shape": x.shape}
        asked = messages.message_class("ModelInferRequest")(
            model_name="linear", inputs=[one], raw_input_contents=[x.tobytes()]
        )
        try:
            told = call(asked, timeout=60)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return None
            raise
        return np.frombuffer(told.raw_output_contents[0], "float32").reshape(-1, 3)

    return ask


def _children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(one) for file in listed for one in file.read_text().split()]


def _resident_megabytes(process: int) -> float:
    line = next(
        one
        for one in Path(f"/proc/{process}/status").read_text().splitlines()
        if one.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
