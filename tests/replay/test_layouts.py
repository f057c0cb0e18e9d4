"""What a kernel depends on besides numbers is recorded and rebuilt: layout, shared memory, random stream, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import lockstep
from lockstep.core.records import Call, Conditions, Layout
from lockstep.core.site import CallKind, Role
from lockstep.replay.calls.layouts import laid, laid_together
from lockstep.replay.calls.rebuild import rebuild
from lockstep.replay.calls.recorded_tensors import load
from lockstep.replay.calls.rerun import Precision, Rerun, outputs_of
from lockstep.store.reader import RankRecording, open_recording

# --- layouts alone ---------------------------------------------------------------------------------


@st.composite
def _views(draw: st.DrawFn) -> torch.Tensor:
    """A view of some memory: permuted, sliced, expanded or windows that overlap."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    base = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    view = base.permute(draw(st.permutations(range(len(shape)))))
    step = draw(st.integers(1, 2))
    view = view[..., ::step]
    if draw(st.booleans()):
        view = view.unsqueeze(0).expand(draw(st.integers(1, 3)), *view.shape)
    if draw(st.booleans()) and view.shape[-1] > 1:
        view = view.unfold(-1, 2, 1)
    return view


@given(_views())
def test_a_tensor_is_laid_as_it_was(view: torch.Tensor) -> None:
    found = laid(view.contiguous(), Layout(view.stride()))
    assert torch.equal(found, view)
    assert found.stride() == view.stride()


@given(_views(), st.integers(0, 3))
def test_tensors_that_shared_memory_share_it_again(view: torch.Tensor, skipped: int) -> None:
    whole = torch.arange(64.0)
    one, two = whole[skipped : skipped + 8], whole[skipped + 4 : skipped + 12].view(2, 4).t()
    layouts = {
        number: Layout(tensor.stride(), int(tensor.storage_offset()), 0)
        for number, tensor in enumerate((one, two))
    }
    found = laid_together(
        {0: one.clone(), 1: two.contiguous(), 2: view}, {**layouts, 2: Layout(view.stride())}
    )
    assert all(torch.equal(found[n], was) for n, was in enumerate((one, two, view)))
    found[0].zero_()
    assert found[1].t().reshape(-1)[:4].eq(0).all(), "they lie in the same memory"
    assert found[1].t().reshape(-1)[4:].ne(0).all()


@pytest.mark.parametrize(
    "layout",
    [Layout((-1, 1)), Layout((1,)), Layout((1 << 40, 1)), Layout((4, 1), 1 << 62, 0)],
    ids=["backwards", "another number of axes", "too far apart", "behind all memory"],
)
def test_an_impossible_layout_is_row_after_row(layout: Layout) -> None:
    tensor = torch.arange(12.0).view(3, 4)
    other = Layout((4, 1), 0, 0)
    assert torch.equal(laid(tensor, layout), tensor)
    assert torch.equal(laid_together({0: tensor, 1: tensor}, {0: layout, 1: other})[0], tensor)


# --- in a recording --------------------------------------------------------------------------------


class _Attention(torch.nn.Module):
    """Every input of its attention is a view of one projection; its output projection lies transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 16)
        self.out.weight = torch.nn.Parameter(torch.randn(16, 16).t())
        self.convolve = torch.nn.Conv2d(3, 4, 3)
        self.recur = torch.nn.LSTM(16, 16, num_layers=2, dropout=0.3)
        self.drop = torch.nn.Dropout(0.2)

    def forward(self, tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        batch, length, width = tokens.shape
        parts = self.project(tokens).split(width, -1)
        heads = [part.view(batch, length, 2, width // 2).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(*heads, dropout_p=0.1, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        with torch.autocast("cpu", enabled=False):  # oneDNN has no such LSTM in bfloat16
            moved, _ = self.recur(mixed.float())
        seen = self.convolve(images.to(memory_format=torch.channels_last))
        with torch.no_grad():
            scale = seen.abs().float().mean()
        return torch.tanh(self.drop(moved).transpose(0, 1)) * scale


def _train(directory: Path, save: str) -> None:
    torch.manual_seed(0)
    model = _Attention()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with lockstep.record(directory, model=model, save=save):
        for step in range(2):
            optimizer.zero_grad()
            tokens, images = torch.randn(2, 5, 16), torch.randn(2, 3, 6, 6)
            with torch.autocast("cpu", torch.bfloat16, enabled=step == 1):
                loss = model(tokens, images).square().mean()
            loss.backward()
            optimizer.step()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RankRecording:
    directory = tmp_path_factory.mktemp("layouts") / "ref"
    _train(directory, "tensors")
    return open_recording(directory).ranks["rank0"]


def _one(recording: RankRecording, op: str, step: int = 0) -> Call:
    return next(call for call in recording.calls(step) if call.site.op == op)


def test_strides_shared_memory_and_conditions_are_recorded(recorded: RankRecording) -> None:
    attention = _one(recorded, "torch.nn.functional.scaled_dot_product_attention")
    layouts = [record.layout for record in attention.with_role(Role.INPUT)]
    assert layouts == [Layout((240, 8, 48, 1), 16 * part, 0) for part in range(3)]
    images = _one(recorded, "torch.nn.functional.conv2d").with_role(Role.INPUT)
    assert images[0].layout == Layout((108, 1, 18, 3)), "channels last"
    update = [call for call in recorded.calls(0) if call.kind is CallKind.OPTIMIZER]
    weight = next(call.records[0] for call in update if call.records[0].name == "out.weight")
    assert weight.layout == Layout((1, 16))
    assert attention.conditions == Conditions(gradients=True)
    assert _one(recorded, "torch.Tensor.abs").conditions == Conditions(gradients=False)
    late = _one(recorded, "torch.nn.functional.linear", step=1)
    assert late.conditions == Conditions(True, (("cpu", "bfloat16"),))


def test_who_draws_random_numbers_keeps_the_state_of_the_generator(
    recorded: RankRecording,
) -> None:
    drew = [call for call in recorded.calls(0) if call.random_state is not None]
    assert {call.site.op for call in drew if call.kind is CallKind.OPERATOR} == {
        "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.functional.dropout",
        "torch.lstm",
    }
    assert {call.site.module for call in drew if call.kind is CallKind.MODULE} == {
        "", "drop", "recur"
    }  # fmt: skip


def test_a_sketch_keeps_layouts_and_no_state_of_the_generator(tmp_path: Path) -> None:
    _train(tmp_path / "light", "sketch")
    recording = open_recording(tmp_path / "light").ranks["rank0"]
    assert all(call.random_state is None for call in recording.calls(0))
    assert _one(recording, "torch.nn.functional.conv2d").records[0].layout is not None


def test_every_call_gives_the_same_bits_again(recorded: RankRecording) -> None:
    judged = 0
    for step in recorded.steps:
        for call in recorded.calls(step):
            if call.kind is not CallKind.OPERATOR:
                continue
            own = Rerun(call, rebuild(call)).run(
                Precision.OWN, backward=bool(call.with_role(Role.GRAD_OUTPUT))
            )
            for record in call.with_role(Role.OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD):
                made, was = outputs_of(own, record), load(record)
                assert any(torch.equal(one.to(was.dtype), was) for one in made), (call.site, record)
                judged += 1
    assert judged > 100


def test_attention_with_dropout_drops_the_same_in_double_precision(
    recorded: RankRecording,
) -> None:
    call = _one(recorded, "torch.nn.functional.scaled_dot_product_attention")
    double = Rerun(call, rebuild(call)).run(Precision.DOUBLE, backward=True)
    for record in call.with_role(Role.OUTPUT, Role.GRAD_INPUT):
        (truth,) = outputs_of(double, record)
        assert torch.allclose(load(record).double(), truth, rtol=1e-4, atol=1e-6), record.name


# --- a kernel that is wrong for one layout -----------------------------------------------------------


@contextmanager
def _reads_rows(name: str) -> Iterator[None]:
    """`torch.nn.functional.<name>` takes the memory of its weight as if it lay row after row."""
    right = getattr(F, name)

    def wrong(source: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
        return right(source, weight.as_strided(weight.shape, weight.contiguous().stride()), *rest)

    setattr(F, name, wrong)
    try:
        yield
    finally:
        setattr(F, name, right)


def test_a_kernel_that_ignores_strides_fails_on_the_rebuilt_inputs(
    recorded: RankRecording,
) -> None:
    calls = [call for call in recorded.calls(0) if call.site.op == "torch.nn.functional.linear"]
    wrong = []
    for call in calls:
        rebuilt = rebuild(call)
        results = Rerun(call, rebuilt).run(Precision.OWN, backward=False)
        inputs = laid_together(
            {index: load(record) for index, record in rebuilt.inputs.items()},
            {index: record.layout for index, record in rebuilt.inputs.items()},
        )
        args, kwargs = rebuilt.filled(inputs, lambda dtype: dtype)
        with _reads_rows("linear"), torch.no_grad():
            wrong.append(not torch.equal(F.linear(*args, **kwargs), results.outputs[0]))
    assert wrong == [call.site.module == "out" for call in calls]
    assert any(wrong)
