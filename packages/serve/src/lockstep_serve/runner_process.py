"""A runner's process: opens a model and runs it, as the server's process asks over a socket.

`python -m lockstep_serve.runner_process SOCKET MEMORY`, both descriptors. Messages are JSON behind their length
in four bytes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.terminal import message
from lockstep_serve.failures import RequestError
from lockstep_serve.opening import Source
from lockstep_serve.protocol.tensors import datatype_of
from lockstep_serve.runners import checked
from lockstep_serve.servable import Servable, TensorSpec
from lockstep_serve.shared_region import LENGTH, SharedRegion

_NICE = 10
"""A reference has the time that answering leaves."""


def main() -> None:
    """Answer until the server closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends this one
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    connection = socket.socket(fileno=int(sys.argv[1]))
    region = SharedRegion(int(sys.argv[2]))
    stream = connection.makefile("rwb")
    asked = _received(stream)
    if asked is None:
        return
    try:
        source = _source_of(asked["kind"])
        servable = source(Path(asked["path"]), asked["device"], asked["settings"]).open()
    except (LockstepError, OSError) as error:
        _send(stream, {"refused": str(error)})
        return
    _send(stream, _told(servable))
    while (asked := _received(stream)) is not None:
        _send(stream, _answer(servable, region, asked))


def _source_of(kind: str) -> type[Source]:
    if kind == Source.kind:
        return Source
    if kind == "bodies":
        from lockstep_serve.protocol.large_bodies import BodySource

        return BodySource
    from lockstep_serve.parity.reference import ReferenceSource

    if hasattr(os, "nice"):
        os.nice(_NICE)
    return ReferenceSource


def _end_with_the_server() -> None:
    """A model that hangs would outlive a server that was killed."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _answer(servable: Servable, region: SharedRegion, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        results = checked(servable, region.read(asked["tensors"]))
    except RequestError as error:
        return {"failed": type(error).__name__, "reason": message(str(error))}
    named = {one.name: results[one.name] for one in servable.signature.outputs}
    table, _ = region.write(named, start=asked["end"])  # a result may be a view of an input
    return {"tensors": table}


def _told(servable: Servable) -> dict[str, Any]:
    signature = servable.signature
    return {
        "platform": servable.platform,
        "inputs": [_spec(one) for one in signature.inputs],
        "outputs": [_spec(one) for one in signature.outputs],
        "batches": signature.batches,
        "without": sorted(signature.without_batch_axis),
        "batching": signature.batching,
        "most": signature.most,
    }


def _spec(one: TensorSpec) -> list[Any]:
    return [one.name, datatype_of(one.dtype), list(one.shape)]


def _received(stream: Any) -> dict[str, Any] | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    found: dict[str, Any] = json.loads(stream.read(LENGTH.unpack(head)[0]))
    return found


def _send(stream: Any, told: dict[str, Any]) -> None:
    text = json.dumps(told).encode()
    stream.write(LENGTH.pack(len(text)) + text)
    stream.flush()


if __name__ == "__main__":
    main()
