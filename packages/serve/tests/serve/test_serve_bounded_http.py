"""The head of a request over a real connection: it comes in time and has an end, or there is no request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from lockstep_serve.protocol.bounded_http import MOST_HEAD_BYTES, bounded_http

ASKED = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"


async def _length_of_body(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})  # fmt: skip
    await send({"type": "http.response.body", "body": b"%d" % len(body)})


@asynccontextmanager
async def connected(
    patience_s: float,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to such a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            _length_of_body, http=bounded_http(patience_s), lifespan="off", log_config=None
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        yield reader, writer
        writer.close()
        server.should_exit = True
        await serving


def test_a_head_that_does_not_come_is_hung_up_on() -> None:
    async def sent(head: bytes) -> bytes:
        async with connected(0.05) as (reader, writer):
            writer.write(head)
            return await asyncio.wait_for(reader.read(), 60)

    for head in (b"", ASKED[:3], ASKED[:-2], ASKED[:-4]):
        assert asyncio.run(sent(head)) == b""


def test_of_a_head_without_an_end_a_part_is_taken() -> None:
    async def sent(line: bytes) -> bytes:
        async with connected(60) as (reader, writer):
            writer.write(ASKED[:-2] + line * (MOST_HEAD_BYTES // len(line) + 1))
            return await asyncio.wait_for(reader.read(), 60)

    for line in (b"a: " + b"b" * 1000 + b"\r\n", b"a" * 1000):
        answer = asyncio.run(sent(line))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b"may have 65536 bytes.")


def test_a_slow_body_and_a_long_head_are_answered_as_ever_on_one_connection() -> None:
    async def answers() -> list[bytes]:
        found = []
        async with connected(0.5) as (reader, writer):
            for more in (b"", b"a: " + b"b" * 60_000 + b"\r\n", b""):
                writer.write(ASKED[:-2] + more + b"\r\n" + b"1")
                await writer.drain()
                # the body takes longer than a head may
                head = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
                assert not (await asyncio.wait([head], timeout=0.7))[0]
                writer.write(b"2")
                await asyncio.wait_for(head, 60)
                found.append(await asyncio.wait_for(reader.readexactly(1), 60))
        return found

    assert asyncio.run(answers()) == [b"2"] * 3
