"""Refuse all clients but browsers of this machine that have the address."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEADERS = (
    (b"content-security-policy", b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)  # fmt: skip
"""Beside them each page has a policy of its own, which lets its script run by its hash and nothing be fetched."""


_WRITTEN = ([b"notes"], [b"live"])
"""What may be written to, by pages of this server: a browser always names the origin of a POST."""


class Guard:
    """Lets through what asks for `/TOKEN/...` by this machine's own name, without the token.

    Another name in `Host` is a page elsewhere whose name was made to lead here (DNS rebinding); another `Origin` is a
    page elsewhere that asks by itself.

    application: What answers then.
    token: Which the address has to begin with.
    port: At which it is served.
    """

    def __init__(self, application: Application, token: str, port: int) -> None:
        self._application, self._token = application, token.encode()
        names = ("127.0.0.1", "localhost", "[::1]")
        self._hosts = {f"{name}:{port}".encode() for name in names}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        refused = self._why_not(scope)
        if refused is not None:
            await _refuse(send, *refused)
            return
        prefix = f"/{self._token.decode()}"
        inner = dict(scope, path=scope["path"].removeprefix(prefix) or "/", root_path="")

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        await self._application(inner, receive, send_guarded)

    def _why_not(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if headers.get(b"host") not in self._hosts:
            return 421, "this server answers to 127.0.0.1 and localhost alone"
        if headers.get(b"origin", b"") not in {b"", *self._origins}:
            return 403, "asked for by a page of another origin"
        parts = scope["path"].encode().split(b"/")[1:]
        if not parts or not hmac.compare_digest(parts[0], self._token):
            return 403, "the address lacks the token that `lockstep ui` printed"
        if scope["method"] == "POST" and parts[1:2] in _WRITTEN:
            return (
                None
                if headers.get(b"origin") in self._origins
                else (403, "written from its own pages alone")
            )
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "everything here is read alone, but for tags, notes and pauses"
        return None


async def _refuse(send: Send, status: int, words: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words.encode() + b"\n"})
