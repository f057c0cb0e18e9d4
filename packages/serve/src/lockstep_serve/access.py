"""Decide who gets an answer: on this machine all but foreign web pages, elsewhere clients with the token."""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lockstep.errors import UsageError, reason_of
from lockstep_serve.failures import RequestError

_LEAST_CHARACTERS = 16
_PEOPLE = stat.S_IRWXG | stat.S_IRWXO


_MOST_SHOWN = 80
"""Characters of a host's name that a refusal repeats."""


class NotAllowedError(RequestError):
    """Whoever asks did not give the token."""

    status = 401
    code = "UNAUTHENTICATED"


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets in who gives the token; everybody where there is none, as then only this machine is listened to.

    digest: SHA-256 of what the header `authorization` has to hold.
    """

    digest: bytes = b""

    def check(self, headers: Iterable[tuple[Any, Any]]) -> None:
        """Look at the headers of a request, or at the metadata of a call.

        Raises NotAllowedError if it may not be answered.
        """
        found = {_bytes(name).lower(): _bytes(value) for name, value in headers}
        if self.digest:
            given = hashlib.sha256(found.get(b"authorization", b"")).digest()
            if not hmac.compare_digest(given, self.digest):  # in a time that tells nothing
                raise NotAllowedError("it has no right `Authorization: Bearer TOKEN`")
        # A page of any site may send to this machine what its visitor could, also by a name of its own that was made to
        # lead here (DNS rebinding).
        elif b"origin" in found:
            raise NotAllowedError("web pages are not answered without --token-file")
        elif not _is_here(host := found.get(b"host", b"localhost")):
            name = host.decode("latin-1")[:_MOST_SHOWN]
            raise NotAllowedError(
                f"the host {name!r} is no name of this machine: ask for localhost, or start with --token-file"
            )


def gate_for(host: str, token_file: Path | None) -> Gate:
    """Return the rule for clients at a host.

    Raises UsageError if others than this machine could ask without a token, or the token's file is none or can be read
    by others.
    """
    if token_file is None:
        if not _is_loopback(host):
            raise UsageError(
                f"--host {host}: other machines would be answered; give --token-file FILE, whose text they have to send"
            )
        return Gate()
    try:
        if os.name == "posix" and token_file.stat().st_mode & _PEOPLE:
            raise UsageError(f"{token_file}: others may read it; chmod 600 {token_file}")
        token = token_file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{token_file}: holds no token that can be read ({reason_of(error)})"
        ) from error
    if len(token) < _LEAST_CHARACTERS or not token.isprintable() or " " in token:
        raise UsageError(
            f"{token_file}: is not a token; write {_LEAST_CHARACTERS} characters or more on one line, such as"
            " `python -c 'import secrets; print(secrets.token_urlsafe())'` gives"
        )
    return Gate(hashlib.sha256(f"Bearer {token}".encode()).digest())


def guarded(application: ASGIApp, gate: Gate) -> ASGIApp:
    """An application that answers whom the gate lets in."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            gate.check(scope.get("headers", ()))
        except NotAllowedError as error:
            refused = JSONResponse(
                {"error": str(error)}, error.status, headers={"WWW-Authenticate": "Bearer"}
            )
            await refused(scope, receive, send)
            return
        await application(scope, receive, send)

    return answer


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@functools.lru_cache(maxsize=64)
def _is_here(host: bytes) -> bool:
    """Whether a `Host` header, which may have a port, names this machine."""
    name = host.decode("latin-1")
    return _is_loopback(name if name.endswith("]") else name.rpartition(":")[0] or name)


def _bytes(one: Any) -> bytes:
    return one if isinstance(one, bytes) else str(one).encode()
