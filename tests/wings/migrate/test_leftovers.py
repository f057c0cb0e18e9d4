"""Nothing that names the old device is passed over: what no rule knows is listed, or kept with a reason."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migrating import TARGETS, kept, listed, plan_of_code


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("use_cuda = True", "use_cuda"),
        ("def to_cuda(x): pass", "to_cuda"),
        ("async def to_cuda(x): pass", "to_cuda"),
        ("class CudaNet: pass", "CudaNet"),
        ("f(cuda=1)", "cuda"),
        ("def f(cuda): pass", "cuda"),
        ("def f():\n    global use_cuda\n", "global use_cuda"),
        ("x.use_cuda = 1", "use_cuda"),
        ("x = 'runs on CUDA only'", "'runs on CUDA only'"),
        ("x = '--no-cuda'", "'--no-cuda'"),
    ],
)
def test_the_users_own_names_and_prose_are_kept(code: str, found: str) -> None:
    assert kept(code) == [found]
    assert listed(code) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from mylib.cuda_ops import add", "mylib.cuda_ops"),
        ("import pycuda.driver", "import pycuda.driver"),
        ("x = 'nvidia-smi -L'", "'nvidia-smi -L'"),
        ("x = '__global__ void add() {}'", "'__global__ void add() {}'"),
        ("x = 'CUDA_VISIBLE_DEVICES=0 python main.py'", "'CUDA_VISIBLE_DEVICES=0 python main.py'"),
        ("x = 'kernel.cu'", "'kernel.cu'"),
        ("import torch\ntorch.cudnn_is_acceptable(x)", "cudnn_is_acceptable"),
    ],
)
def test_what_a_program_reads_is_listed(code: str, found: str) -> None:
    assert found in listed(code)


@pytest.mark.parametrize(
    "code",
    ['"""Runs on CUDA."""', "# cuda\nx = 1", "def f():\n    '''cuda'''\n", "x = 'barracks'"],
)
def test_docstrings_and_comments_need_no_word(code: str) -> None:
    assert plan_of_code(code).mentions == ()


_PIECES = st.sampled_from(
    [
        "torch.cuda.synchronize()", "x = 'cuda'", "y.cuda()", "def cuda_f(a, cuda=1): return cuda",
        "from a.cuda import b", "import nvidia.dali as dali", "z = x.cuda_stream", "f(is_cuda=x.is_cuda)",
        "class Cuda(x.Cuda): pass", "os.environ['NCCL_X'] = '1'", "k = {'cuda': cuda}", "print('no cuda')",
        "from torch import cuda as c", "c.empty_cache()", "del x.cuda", "x.cuda = lambda cuda: cuda",
        "torch.backends.cudnn.benchmark = True", "w = f'{cuda} cuda:{x}'", "torch.nccl.x(nccl='nccl')",
    ]
)  # fmt: skip
_WORD = re.compile(r"\w*(?:cuda|nccl|nvidia|cudnn)\w*", re.IGNORECASE)


@given(st.lists(_PIECES, min_size=1, max_size=6), st.sampled_from(TARGETS))
def test_every_word_that_names_the_device_lies_in_a_mention(lines: list[str], target: str) -> None:
    # given a script of lines that name the device in every way
    code = "import torch\n" + "\n".join(lines) + "\n"
    # when it is migrated
    spans = [mention.span for mention in plan_of_code(code, target).mentions]
    # then each word of the device lies in a mention
    for word in _WORD.finditer(code):
        assert any(s.start < word.end() and word.start() < s.end for s in spans), (code, word)
