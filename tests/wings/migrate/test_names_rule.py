"""Dotted names of torch become the target's, arguments included; what is the user's own stays."""

from __future__ import annotations

import pytest
from migrating import kept, listed, rewritten

HEAD = "import torch\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.cuda.is_available()", "torch.accelerator.is_available()"),
        ("torch.cuda.device_count()", "torch.accelerator.device_count()"),
        ("f = torch.cuda.is_available", "f = torch.accelerator.is_available"),
        ("torch.cuda.synchronize()", "torch.get_device_module(accelerator()).synchronize()"),
        ("torch.cuda.random.manual_seed(0)", "torch.get_device_module(ACCELERATOR).manual_seed(0)"),
        ("except_ = torch.cuda.OutOfMemoryError", "except_ = torch.OutOfMemoryError"),
        ("torch.cuda.amp.GradScaler()", "torch.amp.GradScaler(ACCELERATOR)"),
        ("torch.cuda.amp.GradScaler(2.0)", "torch.amp.GradScaler(ACCELERATOR, 2.0)"),
        (
            "torch.cuda.amp.autocast(True, torch.float16)",
            "torch.amp.autocast(ACCELERATOR, enabled=True, dtype=torch.float16)",
        ),
        (
            "torch.cuda.amp.autocast(\n    enabled=x,  # why\n)",
            "torch.amp.autocast(ACCELERATOR, \n    enabled=x,  # why\n)",
        ),
        (
            "@torch.cuda.amp.custom_fwd\ndef f(): pass",
            "@torch.amp.custom_fwd(device_type=ACCELERATOR)\ndef f(): pass",
        ),
        (
            "@torch.cuda.amp.autocast()\ndef f(): pass",
            "@torch.amp.autocast(ACCELERATOR)\ndef f(): pass",
        ),
        ("torch.cuda.FloatTensor(3)", "torch.FloatTensor(3).to(accelerator())"),
        ("isinstance(s, torch.cuda.amp.GradScaler)", "isinstance(s, torch.amp.GradScaler)"),
        ("def f(s: torch.cuda.amp.GradScaler): pass", "def f(s: torch.amp.GradScaler): pass"),
        ("f'{torch.cuda.device_count()=}'", "f'{torch.accelerator.device_count()=}'"),
        ("torch.get_autocast_gpu_dtype()", 'torch.get_autocast_dtype(ACCELERATOR)'),
    ],
)  # fmt: skip
def test_neutral(before: str, after: str) -> None:
    assert rewritten(HEAD + before) == HEAD + after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.cuda.is_available()", "torch.npu.is_available()"),
        ("torch.cuda.synchronize()", "torch.npu.synchronize()"),
        ("torch.cuda.amp.GradScaler()", "torch.npu.amp.GradScaler()"),
        ("torch.cuda.amp.autocast(True)", "torch.npu.amp.autocast(True)"),
        ("x = torch.cuda", "x = torch.npu"),
        ("torch.cuda.FloatTensor(3)", "torch.npu.FloatTensor(3)"),
    ],
)
def test_npu(before: str, after: str) -> None:
    assert rewritten(HEAD + before, "npu") == HEAD + after


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("torch.backends.cudnn.benchmark = True", "neutral"),
        ("torch.cuda.nvtx.range_push('x')", "neutral"),
        ("torch.cuda.nvtx.range_push('x')", "npu"),
        ("torch.cuda.cudart()", "npu"),
        ("f(torch.version.cuda)", "npu"),
        ("f(torch.cuda.amp.autocast)", "neutral"),
        ("torch.cuda.amp.autocast(*args)", "neutral"),
        ("isinstance(x, torch.cuda.FloatTensor)", "neutral"),
        ("make = torch.cuda.FloatTensor", "neutral"),
        ("torch.nn.DataParallel(model)", "neutral"),
        ("torch.cuda.no_such_name()", "neutral"),
        ("torch.cuda.no_such_name()", "npu"),
        ("torch.cuda.is_available = f", "neutral"),
        ("match d:\n    case torch.cuda.Stream(): pass", "neutral"),
    ],
)
def test_what_has_no_equal_is_listed_and_stays(code: str, target: str) -> None:
    assert rewritten(HEAD + code, target) == HEAD + code
    assert listed(HEAD + code, target)


@pytest.mark.parametrize(
    "code",
    [
        "def f(torch):\n    torch.is_available()\n",
        "cuda = 3\nprint(cuda)\n",
        "def cuda(x): return x\ncuda(1)\n",
        "class A:\n    class torch: cuda = 1\n",
        "from . import cuda\ncuda.is_available()\n",
        "import mylib.cuda\nmylib.cuda.is_available()\n",
        "torch = 1\n[torch.cuda for torch in models]\n",
    ],
)
def test_the_users_own_names_stay(code: str) -> None:
    assert rewritten(code) == code
    assert rewritten(code, "npu") == code


def test_code_that_runs_anywhere_is_kept() -> None:
    code = (
        HEAD + "with torch.autocast(device): pass\ntorch.nn.parallel.DistributedDataParallel(m)\n"
    )
    assert rewritten(code) == code
    assert kept(code) == ["torch.autocast", "torch.nn.parallel.DistributedDataParallel"]


def test_similar_is_written_only_when_asked_for() -> None:
    code = "import apex\no = apex.optimizers.FusedSGD(p, lr=0.1)\n"
    assert rewritten(code) == code
    assert "torch.optim.SGD(p, lr=0.1)" in rewritten(code, similar=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from apex.parallel import DistributedDataParallel as DDP\nDDP(m, delay_allreduce=True)\n",
            "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(m)\n",
        ),
        (
            "from apex.normalization import FusedLayerNorm\nn = FusedLayerNorm(4, 1e-5)\n",
            (
                "from torch.nn import LayerNorm as FusedLayerNorm\n"
                "n = FusedLayerNorm(normalized_shape=4, eps=1e-5)\n"
            ),
        ),
    ],
)
def test_apex_has_equals_in_torch(before: str, after: str) -> None:
    assert rewritten(before) == after


def test_an_option_that_changes_the_meaning_is_listed() -> None:
    code = (
        "from apex.parallel import DistributedDataParallel as DDP\nDDP(m, gradient_average=False)\n"
    )
    assert rewritten(code).endswith("DDP(m, gradient_average=False)\n")
    assert listed(code)
