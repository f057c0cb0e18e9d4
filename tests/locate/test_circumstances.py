"""What differs between the set-ups of two processes, in names and values."""

from __future__ import annotations

from typing import Any

from lockstep.core.manifest import RankManifest
from lockstep.locate.setups.setup_facts import circumstances


def manifest(**values: Any) -> RankManifest:
    return RankManifest(4, "rank0", 1, 1, [], "3.11.7", **values)


def test_every_kind_of_difference_is_a_line() -> None:
    # Given two processes that were set up otherwise
    left = manifest(
        packages={"torch": "2.13.0", "numpy": "2.4"},
        numerics={"threads": "2", "onednn": "True", "float32_matmul_precision": "highest"},
        devices=["cpu"],
        environment={"OMP_NUM_THREADS": "2"},
        seeds={"torch": "0"},
    )
    right = manifest(
        packages={"torch": "2.12.0", "numpy": "2.4"},
        numerics={"threads": "1", "onednn": "False", "float32_matmul_precision": "high"},
        devices=["cpu", "cuda:0"],
        mixed_precision={"autocast_cpu": "torch.bfloat16"},
        environment={"OMP_NUM_THREADS": "1"},
        seeds={"torch": "1"},
    )
    # Then each is said in words, reference first
    assert [str(one) for one in circumstances(left, right)] == [
        "set-up: torch 2.13.0 / 2.12.0",
        "set-up: float32 matmul precision highest / high",
        "set-up: oneDNN True / False",
        "set-up: threads 2 / 1",
        "set-up: autocast cpu - / torch.bfloat16",
        "set-up: devices cpu / cpu, cuda:0",
        "set-up: seed (torch) 0 / 1",
        "set-up: OMP_NUM_THREADS 2 / 1",
    ]


def test_what_names_a_process_or_a_place_is_left_out() -> None:
    left = manifest(environment={"MASTER_PORT": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "a"})
    right = manifest(environment={"MASTER_PORT": "2", "LOCAL_RANK": "1"})
    assert circumstances(left, right) == []


def test_what_an_earlier_build_did_not_note_is_no_difference() -> None:
    left = manifest(numerics={"threads": "2", "tf32": "matmul=False cudnn=True"})
    assert circumstances(left, manifest(numerics={"threads": "2"})) == []


def test_what_was_masked_or_taken_out_is_no_difference() -> None:
    left = manifest(environment={"HCCL_ALGO": "[redacted]", "NCCL_ALGO": "Ring"})
    right = manifest(environment={"HCCL_ALGO": "/a/b", "NCCL_ALGO": "Tree"})
    assert [found.name for found in circumstances(left, right)] == ["NCCL_ALGO"]
