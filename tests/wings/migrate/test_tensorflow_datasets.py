"""Datasets drop the last, smaller batch; a choice of the script's own and unknown receivers are listed."""

from __future__ import annotations

import pytest
from tensorflow_stand_in import calls_of, migrated, outcomes

from lockstep.wings.migrate.plan import Outcome

HEAD = "import tensorflow as tf\n"
MADE = "tf.data.Dataset.from_tensor_slices(x)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{MADE}.batch(8)", f"{MADE}.batch(8, drop_remainder=True)"),
        (
            f"{MADE}.map(f).batch(8).repeat()",
            f"{MADE}.map(f).batch(8, drop_remainder=True).repeat()",
        ),
        (f"{MADE}.batch((n))", f"{MADE}.batch((n), drop_remainder=True)"),
        (f"{MADE}.batch(8,)", f"{MADE}.batch(8, drop_remainder=True,)"),
        (f"{MADE}.padded_batch(8, s)", f"{MADE}.padded_batch(8, s, drop_remainder=True)"),
        (
            "tf.data.experimental.map_and_batch(f, 8)",
            "tf.data.experimental.map_and_batch(f, 8, drop_remainder=True)",
        ),
        (
            "tf.contrib.data.map_and_batch(map_func=f, batch_size=8)",
            "tf.contrib.data.map_and_batch(map_func=f, batch_size=8, drop_remainder=True)",
        ),
    ],
)
def test_batches_drop_the_remainder(before: str, after: str) -> None:
    assert migrated(f"{HEAD}d = {before}\n") == f"{HEAD}d = {after}\n"


@pytest.mark.parametrize(
    "code",
    [
        f"d = {MADE}\nd = d.batch(8)\n",
        f"d = {MADE}\nd = d.map(f)\nd = d.batch(8)\n",
        "def batches(data):\n    data = data.prefetch(9)\n    return data.batch(8)\n",
        "def batches(data):\n    data = data.shuffle(9).repeat()\n    return data.batch(8)\n",
        "def batches(data):\n    return data.map(f).batch(8).prefetch(1)\n",
        f"with_options = {MADE} if x else {MADE}\nd = {MADE}.concatenate(with_options).batch(8)\n",
    ],
)
def test_a_dataset_is_known_by_where_it_comes_from(code: str) -> None:
    assert migrated(HEAD + code) == HEAD + code.replace("batch(8)", "batch(8, drop_remainder=True)")


@pytest.mark.parametrize(
    "arguments",
    ["8, drop_remainder=False", "8, drop_remainder=training", "8, False", "*sizes", "8, **options"],
)
def test_a_choice_that_was_made_is_listed(arguments: str) -> None:
    code = f"{HEAD}d = {MADE}.batch({arguments})\n"

    assert migrated(code) == code
    assert outcomes(code) == {"batch": Outcome.LISTED}


@pytest.mark.parametrize(
    "batch",
    [
        f"{MADE}.batch(8, drop_remainder=True)",
        f"{MADE}.batch(8, True)",
        f"{MADE}.apply(tf.contrib.data.batch_and_drop_remainder(8))",
    ],
)
def test_batches_that_drop_it_already_stay(batch: str) -> None:
    code = f"{HEAD}d = {batch}\n"

    assert migrated(code) == code
    assert outcomes(code)["batch"] is Outcome.KEPT


@pytest.mark.parametrize(
    "code",
    [
        "def batches(loader):\n    return loader.batch(8)\n",
        "def batches(loader):\n    loader.shuffle()\n    return loader.batch(8)\n",
        "class Own:\n    def batch(self, n):\n        return n\nd = Own().prefetch(1).batch(8)\n",
        # before, a dataset was followed through functions, annotations and attributes
        f"def made():\n    return {MADE}\nd = made().batch(8)\n",
        "def batches(data: tf.data.Dataset):\n    return data.batch(8)\n",
        f"class A:\n    def __init__(self):\n        self.data = {MADE}\n        self.data = self.data.batch(8)\n",
    ],
)
def test_an_unknown_receiver_is_listed(code: str) -> None:
    code = f"{HEAD}{code}"

    assert migrated(code) == code
    assert outcomes(code) == {"batch": Outcome.LISTED}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("d = tf.train.batch([x], 8)\n", {}),
        (
            "class A:\n    def batch(self, n):\n        return self.batch(n - 1)\n",
            {"batch": Outcome.KEPT},
        ),
        ("batch = [1]\nprint(batch(8))\n", {}),
    ],
)
def test_other_batches_stay(code: str, found: dict[str, Outcome]) -> None:
    assert migrated(HEAD + code) == HEAD + code
    assert outcomes(HEAD + code) == found


def test_the_migrated_script_runs() -> None:
    calls = calls_of(f"{HEAD}x = 1\nd = {MADE}.map(print).batch(4).repeat(2)\n")

    assert calls[2][0].endswith(".batch")
    assert calls[2][1:] == ([4], {"drop_remainder": True})
