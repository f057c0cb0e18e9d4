"""Mistakes of ports to JAX: each is named at step 0 where it is, and the sound training agrees."""

from __future__ import annotations

from typing import Any

import pytest

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.verdict_words import headline

TWO = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


def compared(trained: Any, mistake: str, **environment: str) -> Comparison:
    sides = (trained("jax_faults", *words, **environment) for words in ((), (mistake,)))
    return lockstep.compare_recordings(*(one.path for one in sides))


@pytest.mark.parametrize("environment", [{}, TWO], ids=["one device", "two devices"])
def test_the_sound_training_agrees_and_no_bit_is_changed(
    trained: Any, bare: Any, environment: dict[str, str]
) -> None:
    found = compared(trained, "again", **environment)
    assert found.verdict is Verdict.AGREE, headline(found)
    assert trained("jax_faults", **environment).printed == bare("jax_faults", **environment)
    assert ("operators inside of shard_map" in headline(found)) == bool(environment)


@pytest.mark.parametrize(
    ("mistake", "phase", "module", "op"),
    [
        ("epsilon", Phase.FORWARD, "ln", "jax.add"),
        ("momentum", Phase.FORWARD, "bn", "jax.mul"),
        ("fan", Phase.INIT, "fc", "flax.linen.Dense"),
        ("gelu", Phase.FORWARD, "", "jax.mul"),
        ("padding", Phase.FORWARD, "conv", "jax.conv_general_dilated.HWIO"),
    ],
)
def test_a_mistake_is_named_with_its_operator(
    trained_here: Any, mistake: str, phase: Phase, module: str, op: str
) -> None:
    found = compared(trained_here, mistake)
    print(headline(found))
    origin = found.origins[0]
    assert (origin.step, origin.phase, origin.module, origin.op) == (0, phase, module, op)


@pytest.mark.parametrize(
    ("mistake", "phase"),
    [
        ("stop_gradient", Phase.BACKWARD),
        ("order", Phase.OPTIMIZER),
        ("mask", Phase.OPTIMIZER),
        ("key", Phase.FORWARD),
    ],
)
def test_a_mistake_is_named_with_its_phase_and_line(
    trained_here: Any, mistake: str, phase: Phase
) -> None:
    found = compared(trained_here, mistake)
    print(headline(found))
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].phase) == (0, phase)
    assert "jax_faults.py:" in found.origins[0].source


def test_a_mean_over_the_wrong_axis_of_devices_is_named(trained: Any) -> None:
    found = compared(trained, "axis", **TWO)
    print(headline(found))
    origin = found.origins[0]
    assert (origin.step, origin.phase, origin.op) == (0, Phase.FORWARD, "jax.shard_map")


def test_a_flag_of_the_precision_that_changes_no_number_is_said_as_a_set_up(trained: Any) -> None:
    """As on a CPU."""
    flags = [
        {
            call.arguments["precision"]
            for call in lockstep.open(trained("jax_faults", *words).path).ranks["rank0"].calls(0)
            if call.site.op == "jax.dot_general"
        }
        for words in ((), ("precision",))
    ]
    assert flags[0] != flags[1]
    found = compared(trained, "precision")
    assert found.verdict is Verdict.AGREE, headline(found)
    assert [str(one) for one in found.setup] == [
        "set-up: jax_default_matmul_precision default / BF16_BF16_F32"
    ]


def test_a_donated_buffer_that_is_read_ends_the_training_as_without_recording(trained: Any) -> None:
    said = trained("jax_faults", "donated").said
    assert "Buffer has been deleted or donated" in said
