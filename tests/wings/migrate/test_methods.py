"""`.cuda()`, `.is_cuda` and `.type(...)` of tensors and modules; methods of the project's own keep their meaning."""

from __future__ import annotations

import pytest
from migrating import kept, listed, rewritten


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.cuda()", "x.to(accelerator())"),
        ("x.cuda(0)", "x.to(accelerator(0))"),
        ("x.cuda(args.gpu)", "x.to(accelerator(args.gpu))"),
        ("x.cuda( i )", "x.to( accelerator(i) )"),
        ("x.cuda((i))", "x.to(accelerator((i)))"),
        ("x.cuda(device=i)", "x.to(device=accelerator(i))"),
        ("x.cuda(None, True)", "x.to(accelerator(None), non_blocking=True)"),
        ("x.cuda(non_blocking=True)", "x.to(accelerator(), non_blocking=True)"),
        ("x.cuda(  # why\n    i,\n)", "x.to(  # why\n    accelerator(i),\n)"),
        ("x.cuda('cuda:1')", "x.to(accelerator(1))"),
        ("x \\\n    .cuda()", "x \\\n    .to(accelerator())"),
        ("x.cuda().y.cuda()", "x.to(accelerator()).y.to(accelerator())"),
        ("[t.cuda() for t in y]", "[t.to(accelerator()) for t in y]"),
        ("f'{x.cuda()}'", "f'{x.to(accelerator())}'"),
        ("super().cuda()", "super().to(accelerator())"),
        ("if x.is_cuda: pass", "if x.device.type == ACCELERATOR: pass"),
        ("y = not x.is_cuda", "y = not x.device.type == ACCELERATOR"),
        ("y = x.is_cuda == z", "y = (x.device.type == ACCELERATOR) == z"),
        ("y = x.is_cuda.real", "y = (x.device.type == ACCELERATOR).real"),
        ("x.type(torch.cuda.HalfTensor)", "x.to(accelerator(), torch.float16)"),
        ("x.type('torch.cuda.FloatTensor')", "x.to(accelerator(), torch.float32)"),
        (
            "torch.load(p, map_location=lambda s, l: s.cuda(0))",
            "torch.load(p, map_location=accelerator(0))",
        ),
        ("torch.load(p, lambda s, l: s.cuda())", "torch.load(p, accelerator())"),
    ],
)
def test_neutral(before: str, after: str) -> None:
    assert rewritten("import torch\n" + before) == "import torch\n" + after


@pytest.mark.parametrize(
    ("before", "after", "target"),
    [
        ("x.cuda(0)", "x.npu(0)", "npu"),
        ("x.cuda()", "x.xpu()", "xpu"),
        ("x.cuda()", 'x.to("mps")', "mps"),
        ("x.cuda(torch.device('cuda', 1))", 'x.to("hpu")', "hpu"),
        ("x.cuda(0, True)", 'x.to("hpu", non_blocking=True)', "hpu"),
        ("x.is_cuda", "x.is_npu", "npu"),
        ("if x.is_cuda: pass", 'if x.device.type == "hpu": pass', "hpu"),
    ],
)
def test_devices(before: str, after: str, target: str) -> None:
    assert rewritten(before, target) == after


@pytest.mark.parametrize(
    "code",
    [
        "cuda(x)",
        "x.cudas()",
        "x.to(device)",
        "x.to(*args)",
        "x.to(copy=True)",
        "x.type(torch.FloatTensor)",
        "x.type()",
        "x['cuda']",
        "sorted(x, key=lambda s, t: s.cpu())",
    ],
)
def test_what_moves_nowhere_stays(code: str) -> None:
    for target in ("neutral", "npu"):
        assert rewritten("import torch\n" + code, target) == "import torch\n" + code


@pytest.mark.parametrize(
    "code", ["x.cuda(*args)", "x.cuda(**options)", "map(torch.Tensor.cuda, xs)", "f(x.cuda)"]
)
def test_what_cannot_be_seen_is_listed(code: str) -> None:
    assert rewritten("import torch\n" + code) == "import torch\n" + code
    assert listed("import torch\n" + code)


OWN = """import torch
class Batch:
    def cuda(self):
        return self
    def both(self):
        return self.cuda()
b = Batch()
b.cuda()
Batch().cuda()
"""


def test_a_stream_of_the_projects_own_is_kept() -> None:
    assert listed("class A:\n    cuda_stream = 0\nlaunch(A().cuda_stream)") == []


def test_a_method_of_the_projects_own_is_kept_with_its_calls() -> None:
    assert rewritten(OWN) == OWN
    assert kept(OWN) == ["cuda", "self.cuda", "b.cuda", "Batch().cuda"]


def test_a_method_of_the_projects_own_is_renamed_with_its_calls() -> None:
    assert rewritten(OWN, "npu") == OWN.replace("cuda", "npu")


def test_a_receiver_that_may_be_either_is_listed() -> None:
    code = OWN + "def f(x):\n    return x.cuda()\n"
    assert rewritten(code) == code
    assert listed(code) == ["cuda()"]


def test_a_scripted_function_is_listed() -> None:
    code = "import torch\n@torch.jit.script\ndef f(x):\n    return x.cuda()\n"
    assert rewritten(code) == code
    assert listed(code) == ["cuda()"]


@pytest.mark.parametrize(
    "code", ["args.cuda = True\nif args.cuda: pass\n", "p.add_argument('--cuda')\nf(args.cuda)\n"]
)
def test_flags_stay(code: str) -> None:
    for target in ("neutral", "npu"):
        assert rewritten(code, target) == code
        assert listed(code, target) == []


def test_a_switch_of_the_backends_is_told_once_under_its_own_name() -> None:
    assert listed("import torch\ntorch.backends.cuda.matmul.allow_tf32 = True") == [
        "torch.backends.cuda.matmul.allow_tf32"
    ]
    # and so is one that nobody knows
    assert listed("import torch\nmove = torch.backends.cuda.matmul.of_nobody") == [
        "torch.backends.cuda.matmul.of_nobody"
    ]
