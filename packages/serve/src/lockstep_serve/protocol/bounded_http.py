"""An HTTP connection for clients that uvicorn does not handle: a slow or endless head, a client that has left.

A client that closes its sending side has left, as for uvicorn: its connection is closed, and its request ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 << 10
"""Of a request's line and headers; h11, uvicorn's other parser, takes as many."""


LEAVING = "lockstep.leaving"
"""In the scope of a request: the tasks that end when its client leaves."""


def bounded_http(patience_s: float) -> type[asyncio.Protocol]:
    """The protocol of a connection on which the head of a request comes in time and with an end, or no request.

    patience_s: From the connection, or the first byte of a further request, to the end of its headers.
    """

    class BoundedHttp(HttpToolsProtocol):
        _head_bytes: int | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._awaited = self.loop.call_later(patience_s, transport.close)
            self._leaving: set[asyncio.Task[Any]] = set()

        def connection_lost(self, error: Exception | None) -> None:
            self._awaited.cancel()
            super().connection_lost(error)
            for task in self._leaving:
                task.cancel()

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
