"""Every family of operators: what was recorded is enough to run the call again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replay_bench import GRADIENTS, operators, recorded
from torch import Tensor, nn

import lockstep
from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.replay.calls.functions import function_of
from lockstep.replay.calls.rebuild import rebuild
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision, Rerun, outputs_of
from lockstep.store.reader import Recording, open_recording

Program = Callable[[Tensor, Tensor], Tensor]
INDEX = torch.tensor([2, 0, 3, 3])


def _in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x * 1.0
    y += w
    y.mul_(2.0).clamp_(-1.0, 1.0)
    y[:, 1] = w[:, 0]
    y[INDEX > 2] += 1.0
    return F.relu(y, inplace=True)


def _indexing(x: Tensor, w: Tensor) -> Tensor:
    parts = [x[1], x[:, 2], x[..., None][0], x[INDEX], x[[0, 2]], x[1:3, INDEX], x[INDEX, 1]]
    parts += [x[1, : INDEX[0]], x[0, : np.int64(3)]]
    return torch.cat([part.reshape(-1) for part in parts])


def _as_the_data_say(x: Tensor, w: Tensor) -> Tensor:
    """Calls of which the data decide how much they return."""
    counts = torch.bincount(INDEX, minlength=5)
    parts = [x.repeat_interleave(INDEX, dim=0), x[x > 0], w.masked_select(w < 0), counts + w.sum()]
    return torch.cat([part.reshape(-1) for part in parts])


def _gathering(x: Tensor, w: Tensor) -> Tensor:
    rows = INDEX.unsqueeze(1).expand(4, 4)
    taken = x.gather(0, rows) + x.index_select(0, INDEX) + F.embedding(INDEX, w, padding_idx=0)
    return taken + torch.zeros(4, 4).scatter_add(0, rows, x).index_add(0, INDEX, w)


def _moving(x: Tensor, w: Tensor) -> Tensor:
    y = torch.stack([x, w], 1).permute(1, 0, 2).reshape(2, 16).view(2, 2, 8).transpose(0, 1)
    y = F.pad(y.flip(0).roll(1, 2), (1, 1)).contiguous().flatten(1).unsqueeze(-1).squeeze(-1)
    parts = y.chunk(2, 1)
    y = torch.where(parts[0] > 0, parts[0], parts[1]).masked_fill(parts[1] > 1, -3e38)
    return torch.tril(y.split([4, 6], dim=1)[0].expand(2, 4).repeat(2, 2)).clamp(-10)


def _norms(x: Tensor, w: Tensor) -> Tensor:
    image = x.reshape(1, 2, 2, 4).repeat(3, 1, 1, 1) * torch.arange(1.0, 4.0).reshape(3, 1, 1, 1)
    y = F.layer_norm(x, (4,), weight=w[0], bias=w[1], eps=1e-5) + F.rms_norm(x, (4,), w[2])
    y = y + F.normalize(x, dim=1) + F.layer_norm(x, [4])
    batch = F.batch_norm(image, torch.zeros(2), torch.ones(2), w[0, :2], w[1, :2], training=True)
    group = F.group_norm(image, 2, w[0, :2], w[1, :2]) + F.instance_norm(image)
    return (y * w).sum() + (batch * image.abs()).sum() + (group * image.tanh()).mean()


def _convolutions(x: Tensor, w: Tensor) -> Tensor:
    image, kernel = x.reshape(1, 1, 4, 4), w.reshape(2, 1, 2, 4)
    y = F.conv2d(image, kernel[:, :, :, :2], w[0, :2], stride=1, padding=1)
    y = F.max_pool2d(y, 2) + F.avg_pool2d(y, kernel_size=2) + F.adaptive_avg_pool2d(y, 2)
    y = F.conv_transpose2d(y, kernel[..., :2], stride=2) + F.interpolate(image, scale_factor=1.0)
    line = F.conv1d(x.unsqueeze(0), F.pad(w.reshape(2, 4, 2), (0, 1)), padding="same")
    return y.sum() + F.unfold(image, 2).square().sum() + (line * line).sum()


def _attention(x: Tensor, w: Tensor) -> Tensor:
    query, key = x.reshape(1, 2, 4, 2), w.reshape(1, 2, 4, 2)
    mask = torch.full((4, 4), -math.inf).triu(1)
    plain = F.scaled_dot_product_attention(query, key, key, is_causal=True)
    masked = F.scaled_dot_product_attention(query, key, query, attn_mask=mask, scale=0.3)
    return (plain * masked).sum()


def _losses(x: Tensor, w: Tensor) -> Tensor:
    y = F.cross_entropy(x, INDEX % 4, label_smoothing=0.1) + F.mse_loss(x, w) + F.l1_loss(x, w)
    y = y + F.binary_cross_entropy_with_logits(x, w.detach().sigmoid(), reduction="sum")
    y = y + F.nll_loss(F.log_softmax(x, dim=1), INDEX % 4, ignore_index=2) + F.smooth_l1_loss(x, w)
    return y + F.kl_div(F.log_softmax(x, 1), F.softmax(w, 1), reduction="batchmean")


PROGRAMS: dict[str, Program] = {
    "products": lambda x, w: F.linear(x, w, w[0]) + x @ w + torch.einsum("ij,kj->ik", x, w),
    "more products": lambda x, w: (
        torch.addmm(w[0], x, w, beta=0.5, alpha=2.0) + torch.bmm(x[None], w[None])[0]
    ),
    "arithmetic": lambda x, w: (1.0 - x) * w / 3 + torch.add(x, w, alpha=0.1) - x / (2 + w * w),
    "smooth": lambda x, w: (
        F.gelu(x, approximate="tanh") + F.silu(w) + x.tanh() + torch.sigmoid(x) + F.softplus(w)
    ),
    "roots": lambda x, w: x.exp() + (w * w + 1).sqrt() + (x * x + 1).log() + (w * w + 1).rsqrt(),
    "powers": lambda x, w: x**2 + torch.pow(w, 3.0) + x.abs() ** 1.5 + x.cos() + w.sin() + x.erf(),
    "kinked": lambda x, w: (
        F.relu(x) + F.leaky_relu(w, 0.1) + x.clamp(min=-0.5) + F.hardswish(x) + torch.maximum(x, w)
    ),
    "sums": lambda x, w: x.sum(1) + w.mean(dim=(0,)) + x.cumsum(0)[1] + w.var(1) + x.amax(1),
    "norms of vectors": lambda x, w: torch.linalg.vector_norm(x) + w.norm(dim=1) + x.std(),
    "softmax": lambda x, w: F.softmax(x, dim=-1) * torch.softmax(w, 0) + F.log_softmax(x, dim=1),
    "choices": lambda x, w: x.topk(2, dim=1).values.sum() + x.sort(1)[0] * w + x.max(1).values,
    "twice": lambda x, w: x * x + torch.matmul(x, x) + w,
    "in place": _in_place,
    "indexing": _indexing,
    "as the data say": _as_the_data_say,
    "gathering": _gathering,
    "moving": _moving,
    "norms": _norms,
    "convolutions": _convolutions,
    "attention": _attention,
    "losses": _losses,
}


class Programs(nn.Module):
    """Runs every program on parameters, so that all positions of arguments can be parameters."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.x = nn.Parameter(torch.randn(4, 4, generator=generator))
        self.w = nn.Parameter(torch.randn(4, 4, generator=generator))
        self.recurrent = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(4, 3)

    def forward(self) -> Tensor:
        """Sum of everything."""
        total = self.recurrent(self.x[None])[0].square().sum() + self.cell(self.w).square().sum()
        for program in PROGRAMS.values():
            total = total + program(self.x, self.w).clamp(-1e4, 1e4).square().sum()
        return total


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    torch.manual_seed(0)
    model = Programs()
    return recorded(tmp_path_factory.mktemp("programs") / "run", lambda: model().backward())


def _far(rerun: Rerun, call: Call, precision: Precision) -> dict[str, float]:
    """Relative distance of every result from what was recorded, in units of single roundoff."""
    results = rerun.run(precision, backward=bool(call.with_role(Role.GRAD_OUTPUT)))
    found = {}
    for record in call.with_role(Role.OUTPUT, Role.BUFFER, *GRADIENTS):
        actual = widened(load(record)).double()
        truths = [widened(truth).double() for truth in outputs_of(results, record)]
        off = min(float((actual - truth).norm()) for truth in truths)
        size = max(float(actual.norm()), 1e-30)
        unit = unit_roundoff("float32")
        found[f"{record.role.value} {record.index}"] = off / size / unit
    return found


def test_every_recorded_operator_can_be_run_again(recording: Recording) -> None:
    # Given one recording with calls of all families, all arguments spelled in all ways
    calls = operators(recording)
    assert len(calls) > 200
    wrong = {}
    for call in calls:
        # When each is put together again and run in double precision
        try:
            far = _far(Rerun(call, rebuild(call)), call, Precision.DOUBLE)
        except CannotReplay as error:
            wrong[call.site.op] = str(error)
            continue
        # Then it gives what was recorded, forward and backward, but for rounding
        wrong.update({f"{call.site.op} {name}": str(off) for name, off in far.items() if off > 64})
    assert wrong == {}


def test_in_the_recorded_dtypes_the_results_are_the_same_bits(recording: Recording) -> None:
    linear = next(call for call in operators(recording) if call.site.op.endswith(".linear"))

    assert set(_far(Rerun(linear, rebuild(linear)), linear, Precision.OWN).values()) == {0.0}


def test_running_again_leaves_the_random_stream_as_it_was(recording: Recording) -> None:
    call = next(
        call for call in operators(recording) if call.site.op.endswith("dot_product_attention")
    )
    before = torch.get_rng_state()

    Rerun(call, rebuild(call)).run(Precision.OWN, backward=True)

    assert torch.equal(torch.get_rng_state(), before)


HOSTILE = [
    "os.system",
    "builtins.eval",
    "torch.load",
    "torch.save",
    "torch.hub.load",
    "torch.jit.load",
    "torch.ops.load_library",
    "torch.serialization.load",
    "torch.from_file",
    "aten.from_file.default",
    "torch.Tensor.numpy",
    "torch.Tensor.__reduce_ex__",
    "torch.Tensor.__setstate__",
    "torch.Tensor.share_memory_",
    "torch.Tensor.set_",
    "torch.Tensor.apply_",
    "torch.Tensor.__class__",
    "torch.Tensor.__init__.__globals__",
    "torch.nn.functional.torch.load",
    "torch.nn.functional.__builtins__",
    "torch.nn.functional.handle_torch_function",
    "torch.nn.functional.warnings.sys",
    "torch._C._import_c_extension",
    "aten.add.Tensor.__init__",
    "aten.__class__.default",
    "",
    "...",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_anything_but_tensor_operators_are_refused(name: str) -> None:
    assert function_of(name) is None


def test_a_recording_cannot_ask_for_memory_that_the_training_never_had(
    recording: Recording,
) -> None:
    # Given a recorded call whose arguments were edited into something huge
    repeat = next(call for call in operators(recording) if call.site.op.endswith(".repeat"))
    arguments = dict.fromkeys(repeat.arguments, 100000)
    # When it is to be run again, then it is refused before anything is allocated
    with pytest.raises(CannotReplay, match="shape"):
        rebuild(replace(repeat, arguments=arguments))


def test_operators_on_each_element_need_no_dry_run_unless_their_tensors_multiply(
    recording: Recording,
) -> None:
    # Given a call on each element of one tensor
    linear = next(call for call in operators(recording) if call.site.op.endswith(".linear"))
    source = replace(linear.with_role(Role.INPUT)[0], index=0, name="args.0", argument="")
    output = linear.with_role(Role.OUTPUT)[0]
    power = replace(
        linear,
        site=replace(linear.site, op="torch.pow"),
        arguments={"args.1": 2.0},
        records=(source, output),
    )
    # Then it is put together without being tried on shapes
    with patch("torch.empty", side_effect=AssertionError("a dry run")):
        assert rebuild(power).function is torch.pow
    # And given two tensors that were edited so that together they make something huge
    wide, tall = (
        replace(source, index=n, name=f"args.{n}", content=replace(source.content, shape=shape))
        for n, shape in enumerate([(1 << 20, 1), (1, 1 << 20)])
    )
    equal = replace(power, site=replace(linear.site, op="torch.eq"), arguments={})
    # Then they are refused before anything is allocated
    with pytest.raises(CannotReplay, match="shape"):
        rebuild(replace(equal, records=(wide, tall, output)))


def test_recordings_of_earlier_builds_are_read_and_not_guessed_at(
    recording: Recording, tmp_path: Path
) -> None:
    # Given a call in which it was not yet recorded which argument a parameter is
    linear = next(call for call in operators(recording) if call.site.op.endswith(".linear"))
    records = tuple(replace(record, argument="") for record in linear.records)
    # When it is put together, then it says that it cannot
    with pytest.raises(CannotReplay, match="which argument"):
        rebuild(replace(linear, records=records))


def test_aten_operators_can_be_run_again_those_that_write_in_place_too(tmp_path: Path) -> None:
    # Given a step recorded operator by operator below autograd
    weight = nn.Parameter(torch.randn(4, 4))
    with lockstep.record(tmp_path / "run", save="tensors", steps="0:1", level="aten"):
        (F.relu((weight * 2).add_(1.0), inplace=True) @ weight).softmax(
            -1
        ).square().sum().backward()
    calls = [
        call
        for call in operators(open_recording(tmp_path / "run"))
        if call.site.op.startswith("aten.") and call.with_role(Role.INPUT)
    ]
    assert {"aten.add_.Tensor", "aten.relu_.default"} <= {call.site.op for call in calls}
    assert any(call.site.op.endswith("backward_data.default") for call in calls)
    for call in calls:
        # Then each gives again what was recorded
        if all(record.content.loader for record in call.records):
            far = _far(Rerun(call, rebuild(call)), call, Precision.DOUBLE)
            assert max(far.values(), default=0.0) < 64, call.site


def test_torchs_own_functions_under_a_second_name_are_found() -> None:
    assert function_of("torch.nn.functional.relu_") is torch.relu_
    assert function_of("torch.nn.functional.warnings") is None
