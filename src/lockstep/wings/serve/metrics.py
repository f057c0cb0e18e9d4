"""What was asked and how long it took, as Prometheus reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lockstep.wings.serve.failures import RequestError


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
        self._running = Gauge(
            "lockstep_serve_requests_in_flight", "Requests that are being answered.",
            registry=self.registry,
        )  # fmt: skip

    @contextmanager
    def asked(self, model: str) -> Iterator[None]:
        """A request is answered within."""
        began_s, ended = time.perf_counter(), "answered"
        self._running.inc()
        try:
            yield
            self._seconds.labels(model).observe(time.perf_counter() - began_s)
        except RequestError as error:
            ended = error.code.lower()
            raise
        except BaseException:
            ended = "cancelled"
            raise
        finally:
            self._running.dec()
            self._asked.labels(model, ended).inc()

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)
