"""Loads on a server: clients that ask again once they were answered, and requests that come whatever was answered."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Answered:
    """What a load measured: requests a second, and the milliseconds of each."""

    rate: float
    milliseconds: NDArray[np.float64]

    @property
    def count(self) -> int:
        """How many requests there were."""
        return len(self.milliseconds)

    def percentile(self, percent: float) -> float:
        """Milliseconds within which so many percent were answered."""
        return float(np.percentile(self.milliseconds, percent))


class Connection:
    """A kept-alive connection that sends the same request again and again."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> bytes:
        """Send the request and give the body of its answer.

        Raises
        ------
        RuntimeError
            If it is refused.
        """
        self._socket.sendall(self._request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._received()
        head, _, body = data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
        if fields.get(b"transfer-encoding") == b"chunked":
            return self._chunks(body)
        while len(body) < int(fields[b"content-length"]):
            body += self._received()
        return body

    def _chunks(self, data: bytes) -> bytes:
        whole = b""
        while True:
            while b"\r\n" not in data:
                data += self._received()
            length, _, data = data.partition(b"\r\n")
            size = int(length, 16)
            while len(data) < size + 2:
                data += self._received()
            if not size:
                return whole
            whole, data = whole + data[:size], data[size + 2 :]

    def _received(self) -> bytes:
        part = self._socket.recv(65536)
        if not part:
            raise RuntimeError("the server closed the connection")
        return part

    def close(self) -> None:
        """End it."""
        self._socket.close()


def health(port: int) -> float:
    """Seconds until a server has answered on a connection of its own that it lives."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = one.recv(4096)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer.decode())
    return time.perf_counter() - began


def together(rounds: Sequence[Answered]) -> Answered:
    """The median rate of rounds of one load, and the requests of all."""
    rate = float(np.median([one.rate for one in rounds]))
    return Answered(rate, np.concatenate([one.milliseconds for one in rounds]))


def closed_loop(connect: Callable[[], Connection], clients: int, seconds: float) -> Answered:
    """So many clients, each of which asks again as soon as it was answered."""
    found: list[list[float]] = [[] for _ in range(clients)]
    start = time.perf_counter()
    end = start + seconds

    def go(latencies: list[float]) -> None:
        connection = connect()
        began = time.perf_counter()
        while began < end or not latencies:
            connection.ask()
            ended = time.perf_counter()
            latencies.append(ended - began)
            began = ended
        connection.close()

    _together(go, found)
    return _summary(found, time.perf_counter() - start)  # the last are answered later


def open_loop(
    connect: Callable[[], Connection], rate: float, seconds: float, connections: int = 32
) -> Answered:
    """Requests at a fixed rate; each is timed from when it was due, not from when a connection was free."""
    due: SimpleQueue[float | None] = SimpleQueue()
    found: list[list[float]] = [[] for _ in range(connections)]

    def arrive() -> None:
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            at = began + number / rate
            time.sleep(max(at - time.perf_counter(), 0))
            due.put(at)
        for _ in range(connections):
            due.put(None)

    def go(latencies: list[float]) -> None:
        connection = connect()
        while (at := due.get()) is not None:
            connection.ask()
            latencies.append(time.perf_counter() - at)
        connection.close()

    arrivals = threading.Thread(target=arrive)
    arrivals.start()
    _together(go, found)
    arrivals.join()
    return _summary(found, seconds)


def _together(go: Callable[[list[float]], None], found: list[list[float]]) -> None:
    threads = [threading.Thread(target=go, args=(one,)) for one in found]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def _summary(found: list[list[float]], seconds: float) -> Answered:
    every = np.concatenate([np.array(one) for one in found]) * 1e3
    return Answered(len(every) / seconds, every)
