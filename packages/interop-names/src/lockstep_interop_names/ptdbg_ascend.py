"""ptdbg_ascend's names: `from lockstep_interop_names.ptdbg_ascend import register_hook, acc_cmp_dump, set_dump_switch`.

From ON to OFF a Lockstep recording is made, of which dump.pkl and the .npy files are written, and `compare` says beside
its table which operator is the first at fault. What cannot be done is said in a sentence, and the training goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep_interop_names.faces.ptdbg_compare import compare_dumps, compare_ranks
from lockstep_interop_names.faces.ptdbg_session import SESSION, Hook
from lockstep_interop_names.faces.seeds import seed_all

__all__ = [
    "acc_cmp_dump",
    "compare",
    "compare_distributed",
    "overflow_check",
    "register_hook",
    "seed_all",
    "set_dump_path",
    "set_dump_switch",
]

acc_cmp_dump = Hook.DUMP
overflow_check = Hook.OVERFLOW


def set_dump_path(
    fpath: str | os.PathLike[str] | None = None, dump_tag: str = "ptdbg_dump"
) -> None:
    """Say where dumps go: into `FPATH/TAG_v2.0/rankN`; without one, into `$ASCEND_WORK_PATH/dump_data`."""
    SESSION.set_dump_path(fpath, dump_tag)


def register_hook(model: Any, hook: Hook, **kwargs: Any) -> None:
    """Take a model to dump (`acc_cmp_dump`), or to watch for its first overflow (`overflow_check`).

    Parameters
    ----------
    model
        The torch.nn.Module that is trained.
    hook
        `acc_cmp_dump` or `overflow_check`.
    kwargs
        `overflow_nums`: behind so many overflows the training ends, 1 by default, -1 for never.
    """
    SESSION.register_hook(model, hook, kwargs)


def set_dump_switch(
    switch: str,
    mode: str = "all",
    scope: Sequence[str] = (),
    api_list: Sequence[str] = (),
    filter_switch: str = "OFF",
    dump_mode: str | Sequence[str] = ("all",),
    summary_only: bool = False,
) -> None:
    """Begin to dump ("ON"), or end and write the files ("OFF").

    Parameters
    ----------
    switch
        "ON" or "OFF".
    mode
        "all", "api_stack" (with stacks), "stack" (stacks alone), "list", "range" or "api_list".
    scope, api_list
        Names of passes as the dump has them (`Functional_linear_0_forward`), and parts of names.
    filter_switch
        "ON" leaves out whole numbers, truths and plain numbers.
    dump_mode
        Which tensors have files: "all", or some of "forward", "backward", "input", "output".
    summary_only
        Write numbers about tensors alone.
    """
    SESSION.set_dump_switch(switch, mode, scope, api_list, filter_switch, dump_mode, summary_only)


def compare(
    input_param: Mapping[str, Any],
    output_path: str | os.PathLike[str],
    stack_mode: bool = False,
    auto_analyze: bool = True,
    suffix: str = "",
    fuzzy_match: bool = False,
) -> None:
    """Compare two dumps: `compare_result_TIME.csv`, the verdict on the screen, and `advisor_TIME.txt`.

    Parameters
    ----------
    input_param
        `npu_pkl_path`, `bench_pkl_path`, `npu_dump_data_dir`, `bench_dump_data_dir`, `is_print_compare_log`.
    output_path
        The folder for both files, which is made where it is not there.
    stack_mode
        Whether the table has where each operator was called from.
    auto_analyze
        Whether the verdict is given.
    suffix
        Stands in the names behind `compare_result`.
    fuzzy_match
        Whether operators meet by their order where the numbers in their names are others.

    Raises
    ------
    UsageError
        If an argument is wrong.
    RecordingError
        If a dump is not there or cannot be read.
    """
    compare_dumps(
        input_param, output_path, stack_mode=stack_mode, auto_analyze=auto_analyze, suffix=suffix,
        fuzzy_match=fuzzy_match,
    )  # fmt: skip


def compare_distributed(
    npu_dump_dir: str | os.PathLike[str],
    bench_dump_dir: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    **kwargs: Any,
) -> None:
    """Compare the ranks of two dumps, each with its own partner; `compare_result_rank0-rank0_TIME.csv` of each.

    Parameters
    ----------
    npu_dump_dir, bench_dump_dir
        Folders with the ranks, `./npu_dump/ptdbg_dump_v2.0`.
    output_path
        The folder for the files.
    kwargs
        As `compare` takes them.

    Raises
    ------
    UsageError
        If the two have other ranks.
    RecordingError
        If a dump is not there or cannot be read.
    """
    compare_ranks(npu_dump_dir, bench_dump_dir, output_path, kwargs)
