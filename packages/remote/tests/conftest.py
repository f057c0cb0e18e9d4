"""A machine to run on, and a home from which to connect to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_host import Client, SshHost

SCRIPT = """
import os
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
factor = float(os.environ.get("FACTOR", "1"))
for step in range(2):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 8)) * factor).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A home of its own; the test is in a folder with a training."""
    client = Client(tmp_path / "here")
    monkeypatch.setenv("HOME", str(client.home))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "SSH_AUTH_SOCK", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(work)
    return client


@pytest.fixture(scope="session")
def home_there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home on the machine, to which Lockstep is sent once for all tests."""
    return tmp_path_factory.mktemp("there")


@pytest.fixture
def host(client: Client, home_there: Path, programs: Path) -> Iterator[SshHost]:
    """A machine that the client knows as `gpu1`, whose Python starts at once."""
    with SshHost(home_there, client.public_key, programs).listening() as host:
        client.knows("gpu1", host)
        yield host
