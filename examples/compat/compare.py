"""Compare what `main_npu_8p.py` dumped twice: of compare.py of the accuracy case, only the import is another."""

from __future__ import annotations

from lockstep_interop_names.ptdbg_ascend import compare

dump_result_param = {
    "npu_pkl_path": "./dump_data_new/npu/ptdbg_dump_v2.0/rank0/dump.pkl",
    "bench_pkl_path": "./dump_data_new/cpu/ptdbg_dump_v2.0/rank0/dump.pkl",
    "npu_dump_data_dir": "./dump_data_new/npu/ptdbg_dump_v2.0/rank0/dump",
    "bench_dump_data_dir": "./dump_data_new/cpu/ptdbg_dump_v2.0/rank0/dump",
    "is_print_compare_log": True,
}

compare(dump_result_param, "./out")
