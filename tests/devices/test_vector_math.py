"""The first call of torch's vector functions, made on one thread."""

from __future__ import annotations

import threading

import pytest
import torch

from lockstep.devices.vector_math import NAMES, prepare_vector_math

VALUES = torch.linspace(0.01, 0.99, 5000)


@pytest.mark.parametrize("name", NAMES)
def test_preparing_changes_no_number_and_draws_none(name: str) -> None:
    # given what a function returns, and the state of the generator
    before, state = getattr(torch, name)(VALUES), torch.get_rng_state()
    # when all are prepared, as if for the first time
    threads = threading.active_count()
    prepare_vector_math.__wrapped__()
    # then neither is another one, and no thread was started
    assert torch.equal(getattr(torch, name)(VALUES), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert threading.active_count() == threads


def test_a_device_or_a_dtype_that_a_script_has_made_the_default_is_not_used() -> None:
    # given a script's own defaults
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            # when the functions are prepared, then they are called on the CPU, and what was set stays
            prepare_vector_math.__wrapped__()
            assert torch.ones(1).device.type == "meta"
            assert torch.ones(1).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_it_is_done_once_a_process() -> None:
    prepare_vector_math()
    before = prepare_vector_math.cache_info().misses
    prepare_vector_math()
    assert prepare_vector_math.cache_info().misses == before
