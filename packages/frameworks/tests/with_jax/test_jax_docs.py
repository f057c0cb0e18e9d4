"""The commands of the page's section on JAX, run as they stand there, and what it says that they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "frameworks.md"
SCRIPT = """\
import flax.linen as nn
import jax
import numpy as np
import optax

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8, name="fc1")(x)
        x = nn.LayerNorm(name="norm")(x)
        return nn.Dense(3, name="fc2")(nn.gelu(x))

random = np.random.default_rng(0)
x, y = random.normal(size=(4, 5)).astype("f4"), np.arange(4) % 3
model, optimizer = Net(), optax.adamw(1e-2)
params = model.init(jax.random.key(0), x)
kept = optimizer.init(params)

@jax.jit
def step(params, kept):
    def loss_of(params):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()
    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, kept = optimizer.update(gradients, kept, params)
    return optax.apply_updates(params, updates), kept, loss

for _ in range(2):
    params, kept, loss = step(params, kept)
"""


@pytest.fixture
def blocks() -> list[list[str]]:
    """The lines of each code block of the section."""
    section = PAGE.read_text().partition("\n## JAX\n")[2].partition("\n## ")[0]
    return [block.strip().splitlines() for block in section.split("```")[1::2]]


def words(text: str) -> str:
    """Words alone: where a line ends depends on the width of the terminal."""
    return " ".join(text.split())


def test_the_commands_of_the_page_print_what_it_says(
    tmp_path: Path, blocks: list[list[str]]
) -> None:
    # given the script, and the one on the new device with another epsilon in its layer norm
    (tmp_path / "train_jax.py").write_text(SCRIPT)
    other = SCRIPT.replace('name="norm"', 'name="norm", epsilon=1e-3')
    (tmp_path / "train_jax_on_new_device.py").write_text(other)
    # when the commands run, but for the installation
    (install, *commands), said = blocks[0], blocks[1]
    assert install == "pip install '.[jax]'"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == (1 if command.startswith("lockstep compare") else 0), done.stderr
    # then the last one prints what the page shows
    assert words("\n".join(said)) in words(done.stdout), done.stdout
