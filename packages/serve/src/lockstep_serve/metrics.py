"""Counts and times of requests, in Prometheus' format."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lockstep_serve.failures import RequestError

_ANSWERED = "answered"


class Metrics:
    """Counts requests by model, and times those that were answered."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._asked = Counter(
            "lockstep_serve_requests", "Requests by model and by how they ended.",
            ["model", "ended"], registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "lockstep_serve_request_seconds", "Seconds of answered requests, waiting included.",
            ["model"], registry=self.registry,
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )  # fmt: skip
        self._children: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._running = Gauge(
            "lockstep_serve_requests_in_flight", "Requests that are being answered.",
            registry=self.registry,
        )  # fmt: skip

    def asked(self, model: str) -> Asked:
        """A request is answered within."""
        return Asked(self, model)

    def began(self) -> None:
        """Count a request that is being answered."""
        self._running.inc()

    def ended(self, model: str, how: str, seconds: float) -> None:
        """Count a request by how it ended; one that was answered with what it took."""
        self._running.dec()
        key = (model, how)
        if key not in self._children:  # to look one up takes longer than to count
            self._children[key] = self._asked.labels(model, how), self._seconds.labels(model)
        counter, histogram = self._children[key]
        counter.inc()
        if how == _ANSWERED:
            histogram.observe(seconds)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)


class Asked:
    """The time in which a request is answered, as a block."""

    __slots__ = ("_began_s", "_metrics", "_model")

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model

    def __enter__(self) -> None:
        self._metrics.began()
        self._began_s = time.perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        how = _ANSWERED if error is None else "cancelled"
        if isinstance(error, RequestError):
            how = error.code.lower()
        self._metrics.ended(self._model, how, time.perf_counter() - self._began_s)
