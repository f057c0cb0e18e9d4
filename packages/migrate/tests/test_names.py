"""The lists of names: well-formed, honest about where they come from, and true of the installed torch."""

from __future__ import annotations

import keyword
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep_migrate import names
from lockstep_migrate.names import TARGETS, has_name, names_of

LISTS = sorted(Path(names.__file__).parent.glob("*.txt"))
DEVICES = ("npu", "hpu", "xpu", "mps", "neutral")

# Resolves every line of its input in a process of its own: importing all of torch leaves things behind.
RESOLVE = """
import importlib, sys

def resolve(dotted):
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return
    raise AttributeError(dotted)

for line in sys.stdin:
    try:
        resolve(line.strip())
    except AttributeError:
        print(line.strip())
"""


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
class TestEveryList:
    def test_is_sorted_and_holds_each_name_once(self, path: Path) -> None:
        listed = _names(path)

        assert listed == sorted(set(listed))

    def test_holds_dotted_names_only(self, path: Path) -> None:
        wrong = [name for name in _names(path) if not _is_dotted_name(name)]

        assert not wrong

    def test_says_where_it_comes_from(self, path: Path) -> None:
        assert {"Source", "Version", "Date"} <= set(_header(path))

    def test_is_part_of_a_target(self, path: Path) -> None:
        assert any(set(_names(path)) <= names_of(target) for target in TARGETS)


def test_every_name_listed_for_torch_is_there() -> None:
    listed = [
        name for path in LISTS if path.stem in ("torch", "xpu", "mps") for name in _names(path)
    ]

    missing = _missing_in_installed_torch(listed)

    if isinstance(missing, str):
        pytest.skip(missing)
    assert not missing


def test_a_name_that_torch_lacks_would_be_seen() -> None:
    missing = _missing_in_installed_torch(["torch.cuda.is_available", "torch.cuda.no_such_name"])

    if isinstance(missing, str):
        pytest.skip(missing)
    assert missing == ["torch.cuda.no_such_name"]


@pytest.mark.parametrize(
    ("target", "dotted"),
    [
        ("npu", "torch.npu.synchronize"),
        ("npu", "torch.npu.FloatTensor"),
        ("npu", "torch.npu.amp.GradScaler"),
        ("npu", "torch_npu.npu_format_cast"),
        ("npu", "torch_npu.optim.NpuFusedAdamW"),
        ("npu", "torch.Tensor.npu"),
        ("npu", "torch.profiler.ProfilerActivity.NPU"),
        ("npu", "torch.amp.autocast"),
        ("hpu", "torch.hpu.synchronize"),
        ("hpu", "habana_frameworks.torch.core.mark_step"),
        ("hpu", "habana_frameworks.torch.hpex.optimizers.FusedAdamW"),
        ("xpu", "torch.xpu.empty_cache"),
        ("mps", "torch.mps.synchronize"),
        ("neutral", "torch.accelerator.current_accelerator"),
        ("neutral", "torch.backends.cuda.matmul.allow_tf32"),
        ("neutral", "torch.backends.cudnn.benchmark"),
        ("npu_bridge", "npu_bridge.npu_init.npu_config_proto"),
        ("npu_bridge", "hccl.manage.api.get_rank_size"),
        ("npu_bridge", "npu_device.open"),
    ],
)
def test_known_names_are_listed(target: str, dotted: str) -> None:
    assert has_name(target, dotted)


@pytest.mark.parametrize(
    ("target", "dotted"),
    [
        # What a renaming of `cuda` to the device's name would make, and what does not exist.
        ("npu", "torch.npu.nvtx"),
        ("npu", "torch.npu.cudart"),
        ("npu", "torch.npu.nccl"),
        ("npu", "torch.npu.comm"),
        ("hpu", "torch.hpu.empty_cache"),
        ("hpu", "torch.hpu.nvtx"),
        ("xpu", "torch.xpu.nvtx"),
        ("mps", "torch.mps.set_device"),
        ("neutral", "torch.accelerator.manual_seed"),
        ("neutral", "torch.npu.synchronize"),
        ("npu", "torch.hpu.synchronize"),
        ("npu_bridge", "torch.npu.synchronize"),
        ("npu_bridge", "npu_bridge.npu_init.no_such_name"),
    ],
)
def test_what_does_not_exist_is_not_listed(target: str, dotted: str) -> None:
    assert not has_name(target, dotted)


@pytest.mark.parametrize("target", DEVICES)
def test_every_device_target_has_torch_itself(target: str) -> None:
    assert names_of("torch") <= names_of(target)


def test_an_unknown_target_is_refused_with_the_choice() -> None:
    with pytest.raises(ValueError, match=r"'tpu'.*npu"):
        names_of("tpu")


def _names(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def _header(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    said = (line.removeprefix("# ").partition(": ") for line in lines if line.startswith("# "))
    return {key: value for key, separator, value in said if separator}


def _is_dotted_name(name: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))


def _missing_in_installed_torch(listed: list[str]) -> list[str] | str:
    """Names that the installed torch lacks, or why it cannot tell."""
    import torch

    listed_from = _header(Path(names.__file__).with_name("torch.txt"))
    installed, expected = torch.__version__.split("+")[0], listed_from["Version"]
    if installed != expected:
        return f"the lists are of torch {expected}, installed is {installed}"
    # Deprecated names warn when they are read, which is no fault of the list.
    command = [sys.executable, "-W", "ignore", "-c", RESOLVE]
    result = subprocess.run(
        command, input="\n".join(listed), check=True, capture_output=True, text=True
    )
    return result.stdout.split()
