"""Strings that name the device or its libraries, each by what it is used for."""

from __future__ import annotations

import pytest
from migrating import kept, listed, rewritten

BACKEND = "torch.distributed.get_default_backend_for_device"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.to('cuda')", "x.to(accelerator())"),
        ("x.to('cuda:1')", "x.to(accelerator(1))"),
        ("x.to('cuda', copy=True)", "x.to(accelerator(), copy=True)"),
        ("d = 'cuda' if ok else 'cpu'", "d = accelerator() if ok else 'cpu'"),
        ("torch.device('cuda')", "torch.device(accelerator())"),
        ("torch.device('cuda', rank)", "torch.device(accelerator(rank))"),
        ("torch.zeros(1, device='cuda')", "torch.zeros(1, device=accelerator())"),
        ("d = f'cuda:{rank}'", "d = accelerator(rank)"),
        ("d = f'cuda:{a + b}'", "d = accelerator(a + b)"),
        ("d = f'cuda:{rank:d}'", "d = f'{accelerator()}:{rank:d}'"),
        ("d = 'cuda:' f'{rank}'", "d = accelerator(rank)"),
        ("d = ('cuda:'\n     f'{rank}')", "d = (accelerator(rank))"),
        (
            "d = ('cuda:'  # card\n     f'{rank}')",
            "d = (f'{accelerator()}:'  # card\n     f'{rank}')",
        ),
        ("d = 'cuda:' f'{rank:d}'", "d = f'{accelerator()}:' f'{rank:d}'"),
        ("d = 'cuda:' f'{a}' '0'", "d = f'{accelerator()}:' f'{a}' '0'"),
        ("d = 'cuda:%d' % rank", "d = accelerator(rank)"),
        ("d = 'cuda:%d' % (rank,)", "d = accelerator(rank)"),
        ("d = 'cuda:{}'.format(rank)", "d = accelerator(rank)"),
        ("d = 'cuda:' + str(rank)", "d = accelerator(rank)"),
        ("if d == 'cuda': pass", "if d == ACCELERATOR: pass"),
        ("if d in ('cuda', 'cpu'): pass", "if d in (ACCELERATOR, 'cpu'): pass"),
        ("d.startswith('cuda')", "d.startswith(ACCELERATOR)"),
        ("choices = ['cuda', 'cpu']", "choices = [ACCELERATOR, 'cpu']"),
        ("torch.autocast('cuda')", "torch.autocast(ACCELERATOR)"),
        ("torch.autocast(device_type='cuda')", "torch.autocast(device_type=ACCELERATOR)"),
        ("n = {'cuda': 1, 'cpu': 2}[d]", "n = {ACCELERATOR: 1, 'cpu': 2}[d]"),
        ("init(backend='nccl')", f"init(backend={BACKEND}(accelerator()))"),
        ("if b == 'nccl': pass", f"if b == {BACKEND}(ACCELERATOR): pass"),
        (
            "init('cpu:gloo,cuda:nccl')",
            f"init(f'cpu:gloo,{{ACCELERATOR}}:{{{BACKEND}(ACCELERATOR)}}')",
        ),
        ("t == 'torch.cuda.FloatTensor'", "t == f'torch.{ACCELERATOR}.FloatTensor'"),
        ("s = f\"{d == 'cuda:0'}\"", "s = f\"{d == f'{ACCELERATOR}:0'}\""),
        ("s = f'{d == \"cuda:0\"}'", "s = f'{d == f\"{ACCELERATOR}:0\"}'"),
        ("d = ('cpu', 'cuda')[ok]", "d = ('cpu', ACCELERATOR)[ok]"),
        ("x = 1if'cuda'else 2", "x = 1if accelerator() else 2"),
        ("p(default='cuda', choices=['cuda'])", "p(default=accelerator(), choices=[ACCELERATOR])"),
    ],
)
def test_neutral(before: str, after: str) -> None:
    assert rewritten("import torch\n" + before) == "import torch\n" + after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.to('cuda:1')", "x.to('npu:1')"),
        ("x.to(u'''cuda''')", "x.to(u'''npu''')"),
        ("d = f'cuda:{rank}'", "d = f'npu:{rank}'"),
        ("d = 'cuda:%d' % rank", "d = 'npu:%d' % rank"),
        ("init('cpu:gloo,cuda:nccl')", "init('cpu:gloo,npu:hccl')"),
        ("init('NCCL')", "init('hccl')"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'", "os.environ['ASCEND_RT_VISIBLE_DEVICES'] = '0'"),
        ("match d:\n    case 'cuda': pass", "match d:\n    case 'npu': pass"),
        ("t == 'torch.cuda.FloatTensor'", "t == 'torch.npu.FloatTensor'"),
    ],
)  # fmt: skip
def test_npu(before: str, after: str) -> None:
    assert rewritten(before, "npu") == after


@pytest.mark.parametrize(
    "code",
    [
        "x['cuda']",
        "x.get('cuda')",
        "getattr(args, 'cuda')",
        "p.add_argument('--cuda')",
        "print('cuda')",
        "log.info(f'cuda:{i}')",
        "p.add_argument('--device', help='cuda')",
        "assert ok, 'cuda'",
        "raise ValueError('cuda')",
        "'''cuda'''",
        "def f():\n    'cuda:0'\n",
        "x = {'cuda': 1}",
        "x = 'cudas'",
        "x = 'barracuda'",
        "x = 'no CUDA here'",
        "x = b'cuda'",
    ],
)
def test_keys_flags_and_text_stay(code: str) -> None:
    for target in ("neutral", "npu"):
        assert rewritten(code, target) == code


def test_keys_flags_and_text_are_kept_with_a_word() -> None:
    assert kept("x['cuda']\nprint('cuda')\nf('--no-cuda')\n") == ["'cuda'", "'cuda'", "'--no-cuda'"]


@pytest.mark.parametrize(
    "code",
    [
        "d = 'cuda:{r}'.format(r=r)",
        "d = 'cuda:{}'.format(*r)",
        "d = 'cuda:%d' % (a + b)",
        "match d:\n    case 'cuda': pass",
        "def f(d: Literal['cuda', 'cpu']): pass",
        "init('NCCL')",
        "os.environ['NCCL_DEBUG'] = 'INFO'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "subprocess.run('nvidia-smi')",
        "getattr(torch, 'cuda')",
    ],
)
def test_what_cannot_be_told_is_listed(code: str) -> None:
    assert rewritten("import torch\n" + code) == "import torch\n" + code
    assert listed("import torch\n" + code)
