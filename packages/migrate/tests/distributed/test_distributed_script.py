"""Main scripts whose bytes matter or that stay as they are; which places change stands in `pairs/distributed`."""

from functools import partial

import pytest
from places import HEAD, Migrated
from runs import SCRIPTS

from lockstep_migrate.distributed.script import WRAP, distribute

TRAINING = """
loader = DataLoader(data, batch_size=4, shuffle=True)
model = nn.Linear(4, 2)
for epoch in range(3):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
"""


def many(data, target="neutral", name="model"):
    return Migrated(data, [partial(distribute, names=(name,))], target)


@pytest.mark.parametrize(
    ("target", "name", "why"), [("neutral", "nobody", "--model"), ("mps", "model", "one device")]
)
def test_what_cannot_be_distributed_is_left_alone(target, name, why):
    found = many((HEAD + TRAINING).encode(), target, name)
    assert found.unchanged
    assert why in found.listed(WRAP)[0]


def test_tabs_stay_tabs():
    text = (HEAD + TRAINING + "print(1,\n\t2)\n").replace("    ", "\t")
    found = many(text.encode())
    assert "\tif WORLD_SIZE > 1:\n\t\tloader.sampler.set_epoch(epoch)\n" in found.text
    assert "if RANK == 0:\n\tprint(1,\n\t\t2)\n" in found.text


def test_other_line_ends_and_encodings_stay():
    text = (HEAD + TRAINING + "print('é')\n").replace("\n", "\r\n")
    found = many(("# coding: latin-1\r\n" + text).encode("latin-1"))
    assert b"\n" not in found.plan.migrated().replace(b"\r\n", b"")
    assert b"print('\xe9')" in found.plan.migrated()


def test_a_script_that_was_made_neutral_before_can_follow():
    plain = Migrated((SCRIPTS / "module_level.py").read_bytes(), [])
    found = many(plain.plan.migrated())
    assert found.text.count("class accelerator:") == 1
    assert found.text.index("class accelerator:") < found.text.index("\nstart_processes()\n")
