"""Dumps whose checksums were taken on a thread of its own, while operators that work in place changed the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.report.comparison.screen import headline
from lockstep.testing.made_dumps import probe_call, probe_leaf, probe_records


def dump(folder: Path, *, late: bool = False, factor: float = 1.0, counter: int = 1) -> Path:
    """y = conv(x), y += x, relu_(y): checksums at once, or those of what is left at the end; conv by a factor."""
    x = np.random.default_rng(3).standard_normal((4, 8)).astype("f4")
    y = (np.tanh(x) * np.float32(factor)).astype("f4")
    added = y + x
    ended = np.maximum(added, 0)
    count = np.array(0)
    last = ended if late else None
    data = {
        "Tensor.add_.0.forward": ([probe_leaf(count, np.array(counter) if late else None)], probe_leaf(np.array(1))),
        "Functional.conv2d.0.forward": ([probe_leaf(x)], probe_leaf(y, last)),
        "Tensor.__iadd__.0.forward": ([probe_leaf(y, last), probe_leaf(x)], probe_leaf(added, last)),
        "Functional.relu.0.forward": ([probe_leaf(added, last)], probe_leaf(ended)),
    }  # fmt: skip
    return written(folder, data)


def written(folder: Path, data: Mapping[str, tuple[list[Any], Any]]) -> Path:
    """A dump of operators at level L1."""
    return probe_records(folder, {name: probe_call(*one) for name, one in data.items()})


def compared(tmp_path: Path, **candidate: Any) -> Comparison:
    return compare_recordings(dump(tmp_path / "a"), dump(tmp_path / "b", **candidate))


@pytest.mark.parametrize("counter", [1, 7])
def test_equal_numbers_with_another_checksum_are_counted_and_not_judged(
    tmp_path: Path, counter: int
) -> None:
    found = compared(tmp_path, late=True, counter=counter)
    assert found.verdict is Verdict.AGREE
    # The counter is known by its extremes: it is one number.
    assert "4 not judged (equal numbers, different checksums)" in headline(found)
    assert sum("not judged: equal numbers" in one.reason for one in found.findings) == 4


@pytest.mark.parametrize("late", [False, True])
def test_other_numbers_are_a_difference_whatever_the_checksums_are(
    tmp_path: Path, late: bool
) -> None:
    found = compared(tmp_path, late=late, factor=1.01)
    assert [one.op for one in found.origins] == ["torch.nn.functional.conv2d"]


def test_equal_checksums_of_a_later_moment_hide_no_other_numbers(tmp_path: Path) -> None:
    x, zeros = np.linspace(-1, 1, 32, dtype="f4"), np.zeros(32, "f4")
    sides = [
        written(
            tmp_path / name,
            {
                "Functional.gelu.0.forward": ([probe_leaf(x)], probe_leaf(y, zeros)),
                "Tensor.zero_.0.forward": ([probe_leaf(y, zeros)], probe_leaf(zeros)),
            },
        )
        for name, y in (("a", np.tanh(x)), ("b", np.tanh(x) * np.float32(1.01)), ("c", np.tanh(x)))
    ]
    found = compare_recordings(*sides[:2])
    assert [one.op for one in found.origins] == ["torch.nn.functional.gelu"]
    assert compare_recordings(sides[0], sides[2]).verdict is Verdict.AGREE


def test_a_mean_that_was_summed_in_another_order_is_no_difference(tmp_path: Path) -> None:
    x = np.linspace(-1, 2, 32, dtype="f4")
    near, far = probe_leaf(x), probe_leaf(x)
    near["Norm"] *= 1 + 2**-22
    far["Norm"] *= 1 + 2**-10
    base, one, two = (
        written(tmp_path / name, {"Functional.gelu.0.forward": ([probe_leaf(x)], value)})
        for name, value in (("a", probe_leaf(x)), ("b", near), ("c", far))
    )
    agreed = compare_recordings(base, one)
    assert agreed.verdict is Verdict.AGREE
    assert "all equal bit by bit" in headline(agreed)
    assert compare_recordings(base, two).verdict is not Verdict.AGREE


def test_no_tensor_is_shown_with_the_numbers_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dump(tmp_path / "a", late=True)
    x = np.random.default_rng(3).standard_normal((4, 8)).astype("f4")
    added = np.tanh(x) + x
    records = {record.name + record.site.op: record for record in lockstep.open(path).records()}
    for name, value in (
        ("args.0torch.nn.functional.relu", added),
        ("args.0torch.Tensor.add_", np.tanh(x)),
        ("resulttorch.nn.functional.conv2d", np.tanh(x)),
    ):
        numbers = records[name].statistics
        assert numbers is not None
        assert numbers.maximum == pytest.approx(float(value.max()), rel=1e-6)
    main(["show", str(path), "*relu*"])
    assert f"{float(added.min()):.4g}"[:5] in capsys.readouterr().out
