"""The words that name the old device."""

from __future__ import annotations

import functools
import re

WORDS = re.compile(
    r"cuda|nccl|cudnn|cublas|cusparse|nvtx|nvml|nvidia|apex|tf32|triton|cupy|gputil|tensorrt|"
    r"transformer_engine|flash_attn|xformers|bitsandbytes|amp_C|DataParallel|SyncBatchNorm|"
    r"autocast|GradScaler|ProfilerActivity|set_default_tensor_type|cpp_extension|load_inline|nn\.parallel|load_library|_symmetric_memory|"
    r"pin_memory|map_location|(?:torch|th|jit)\.load\b|load_state_dict_from_url|float32_matmul_precision|device_ids|pycuda|pynvml|fork_rng|torch\.profiler|"
    r"\bNVTE_|flash_attention|_[48]bit|bitsandbytes|\bpaged_|accelerator\s*=\s*[\"']gpu|cudf|cuml|cugraph|index_cpu_to_|StandardGpu|GpuIndex|(?-i:\bFused[A-Z])",
    re.IGNORECASE,
)
"""Any mention holds one of these words, or of those below."""
_BARE_NUMBER = re.compile(
    r"\b(?:to|device)\s*[(=]\s*(?:device\s*=\s*)?(?:\d|[\w.]*(?:rank|gpu|device_?i|current_device))",
    re.IGNORECASE,
)
"""A device that may be given as a number."""

_OF_LIBRARIES = re.compile(
    r"(?:\b|_)gpus?\b|efficient_attention",
    re.IGNORECASE,
)
"""What libraries call the old device, or what only it has: alone these words say nothing."""

DEVICE_WORDS = re.compile(
    r"cuda|nccl|cudnn|cublas|nvtx|nvml|nvidia|apex|tf32|tensorrt|triton|__global__|\.cuh?\b|"
    r"sync_?batch_?norm|syncbn|data_?parallel|custom_[fb]wd|fp16_optimizer|scale_loss|grad_?scaler|"
    r"autocast|\bamp\b|bitsandbytes|\bnsys\b|\bnvprof\b|nvcc|--gpus|nvcr\.io|[+/-]cu1\d\d\b|-gencode|\bsm_\d\d|\bsm_\Z|nvfuser|nvenc|nvdec|cuvid|\bNVTE_|transformer_?engine|"
    r"compute_\d\d|\b[AHVP]100\b|\bH200\b|GeForce|\bTesla\b|\bRTX\b|SLURM\w*GPU|(?-i:\bGPU_[A-Z])",
    re.IGNORECASE,
)
"""Words that a name or string of the user's own may hold too; each one left over is listed or kept with a reason."""


@functools.lru_cache(maxsize=1 << 16)
def is_device_word(name: str) -> bool:
    """Whether a name holds a word of the old device; names come again and again."""
    return DEVICE_WORDS.search(name) is not None


def names_a_device(text: str) -> bool:
    """Whether a text can hold a mention at all."""
    patterns = (WORDS, DEVICE_WORDS, _BARE_NUMBER, _OF_LIBRARIES)
    return any(pattern.search(text) is not None for pattern in patterns)
