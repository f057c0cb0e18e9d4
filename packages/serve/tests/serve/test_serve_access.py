"""Who is answered: everybody on this machine, and beyond it who knows the token."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serve_models
from serve_asgi import application, asked
from serve_process import serving

from lockstep.core.errors import UsageError
from lockstep_serve.access import Gate, gate_for, guarded
from lockstep_serve.repository import Limits, Repository

TOKEN = "a-token-of-some-length"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_machines_are_not_answered_without_a_token(host: str, token_file: Path) -> None:
    with pytest.raises(UsageError, match="other machines would be answered; give --token-file"):
        gate_for(host, None)
    assert gate_for(host, token_file).digest


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    assert gate_for(host, None) == Gate()


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (TOKEN, 0o644, "others may read it; chmod 600"),
        (TOKEN, 0o620, "others may read it"),
        ("short", 0o600, "is not a token; write 16 characters or more"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "is not a token"),
        ("é" * 20, 0o600, "holds no token that can be read"),
    ],
)
def test_a_file_that_is_no_secret_is_refused(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(UsageError) as raised:
        gate_for("127.0.0.1", file)
    assert words in str(raised.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no token that can be read"):
        gate_for("0.0.0.0", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer another-token-entirely"}, 401),
        ({"authorization": TOKEN}, 401),
        ({"authorization": f"Bearer {TOKEN}"}, 200),
    ],
)
def test_only_the_right_header_is_let_in(
    tmp_path: Path, token_file: Path, headers: dict[str, str], status: int
) -> None:
    (tmp_path / "none" / "1").mkdir(parents=True)

    async def go() -> int:
        app = guarded(
            application(Repository([tmp_path / "none"], Limits())), gate_for("::", token_file)
        )
        return (await asked(app, "/v2/repository/index", [], headers))[0]

    assert asyncio.run(go()) == status


FOREIGN = (
    "the host 'rebound.example.org:8000' is no name of this machine: ask for localhost, or start"
    " with --token-file"
)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"origin": "https://example.org"}, "web pages are not answered without --token-file"),
        (
            {"host": "rebound.example.org:8000"},
            FOREIGN,
        ),
    ],
)
def test_a_web_page_or_a_foreign_host_is_not_answered_without_a_token(
    tmp_path: Path, headers: dict[str, str], words: str
) -> None:
    (tmp_path / "none" / "1").mkdir(parents=True)

    async def go() -> tuple[int, Any]:
        app = guarded(application(Repository([tmp_path / "none"], Limits())), Gate())
        return await asked(app, "/v2/repository/models/none/unload", [], headers)

    status, told = asyncio.run(go())
    assert (status, told["error"]) == (401, words)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000", "[::1]"])
def test_this_machine_by_its_own_names_is_answered(host: str) -> None:
    Gate().check([(b"host", host.encode())])


def test_stock_clients_send_it_over_both_transports(tmp_path: Path, token_file: Path) -> None:
    http = pytest.importorskip("tritonclient.http", reason="needs tritonclient, of the dev extra")
    grpc = pytest.importorskip("tritonclient.grpc")
    model = serve_models.linear(tmp_path / "linear.onnx")
    x = np.ones((1, 4), "float32")
    with serving(model, "--host", "0.0.0.0", "--token-file", token_file) as served:
        for transport, address in ((http, served.http), (grpc, served.grpc)):
            client = transport.InferenceServerClient(address.replace("0.0.0.0", "127.0.0.1"))
            given = transport.InferInput("x", [1, 4], "FP32")
            given.set_data_from_numpy(x)
            with pytest.raises(Exception, match="has no right `Authorization: Bearer TOKEN`"):
                client.infer("linear", [given])
            headers = {"authorization": f"Bearer {TOKEN}"}
            found = client.infer("linear", [given], headers=headers)
            assert found.as_numpy("y").tolist() == [[6.0, 2.0, -2.0]]
            client.close()
