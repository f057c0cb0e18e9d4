"""An HTTP connection for clients that uvicorn does not handle: a slow or endless head, a client that has sent its
request and closed its sending side, a client that has left."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 << 10
"""Of a request's line and headers; h11, uvicorn's other parser, takes as many."""


LEAVING = "lockstep.leaving"
"""In the scope of a request: the tasks that end when its client leaves."""

_STATUS = b"HTTP/1.1 "
"""How every answer begins, whatever it is."""

_FIRST_LOOK_S = 0.05


class _Begun:
    """A transport on which the first bytes of an answer were sent already."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._sent = transport, 0

    def look(self) -> bool:
        """Send one more byte; whoever has closed the connection says so to it. Returns whether there are more."""
        self._transport.write(_STATUS[self._sent : self._sent + 1])
        self._sent += 1
        return self._sent < len(_STATUS)

    def write(self, data: bytes) -> None:
        """Send the rest."""
        self._transport.write(data[self._sent :])
        self._sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def bounded_http(patience_s: float) -> type[asyncio.Protocol]:
    """The protocol of a connection on which the head of a request comes in time and with an end, or no request.

    Parameters
    ----------
    patience_s
        From the connection, or the first byte of a further request, to the end of its headers.
    """

    class BoundedHttp(HttpToolsProtocol):
        _head_bytes: int | None = None
        _looking: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._awaited = self.loop.call_later(patience_s, transport.close)
            self._leaving: set[asyncio.Task[Any]] = set()

        def connection_lost(self, error: Exception | None) -> None:
            self._awaited.cancel()
            if self._looking is not None:
                self._looking.cancel()
            super().connection_lost(error)
            for task in self._leaving:
                task.cancel()

        def eof_received(self) -> bool:  # type: ignore[override]
            """Keep a connection whose client sends no more: it may read on, or it may have left altogether.

            Both look the same until something is sent. What every answer begins with can be sent at any time, so it
            goes byte by byte, ever more slowly; to one who has left the second of them fails.
            """
            cycle: Any = self.cycle
            if cycle is None or cycle.response_complete or cycle.more_body:
                return False
            cycle.keep_alive = False
            if not self.pipeline and not cycle.response_started:
                cycle.transport = _Begun(self.transport)
                self._look(cycle, _FIRST_LOOK_S)
            return True

        def _look(self, cycle: Any, again_s: float) -> None:
            if (
                not cycle.response_started
                and not self.transport.is_closing()
                and cycle.transport.look()
            ):
                self._looking = self.loop.call_later(again_s, self._look, cycle, 3 * again_s)

        def on_message_begin(self) -> None:
            self._awaited.cancel()
            self._awaited = self.loop.call_later(patience_s, self.transport.close)
            self._head_bytes = 0
            super().on_message_begin()
            scope: Any = self.scope
            scope[LEAVING] = self._leaving

        def on_headers_complete(self) -> None:
            self._awaited.cancel()
            self._head_bytes = None
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # Counted here: the parser keeps a line until it has its end.
            if self._head_bytes is not None and not self.transport.is_closing():
                self._head_bytes += len(data)
                if self._head_bytes > MOST_HEAD_BYTES:
                    self.send_400_response(
                        f"The line and headers of a request may have {MOST_HEAD_BYTES} bytes."
                    )

    return BoundedHttp
