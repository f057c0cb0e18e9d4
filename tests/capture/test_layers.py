"""Layers with a will of their own: recurrent ones, attention, embeddings, batch norm, dropout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import (
    CallKind,
    Role,
    Training,
    as_tensor,
    calls,
    check,
    named,
    not_seen,
    one_call,
    same,
    supervised,
    values,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

LEVELS = ("module", "api", "aten")


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, *, packed: bool) -> None:
        super().__init__()
        self.layer, self.packed = layer, packed

    def forward(self, x: Tensor) -> Tensor:
        if not self.packed:
            output, _ = self.layer(x)
            return output
        packed = pack_padded_sequence(
            x, torch.tensor([5, 2, 3]), batch_first=True, enforce_sorted=False
        )
        output, _ = self.layer(packed)
        return pad_packed_sequence(output, batch_first=True)[0]


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(4, 3, batch_first=True),
    "LSTM-bidirectional": lambda: nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True),
    "LSTM-projected": lambda: nn.LSTM(4, 3, batch_first=True, proj_size=2),
    "GRU": lambda: nn.GRU(4, 3, 2, batch_first=True, dropout=0.3),
    "RNN": lambda: nn.RNN(4, 3, batch_first=True),
}


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("level", LEVELS)
def test_recurrent_layers(tmp_path: Path, kind: str, packed: bool, level: str) -> None:
    # given a recurrent layer behind a projection, so that it has an input gradient
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), Recurrent(RECURRENT[kind](), packed=packed))
        return supervised(model, lambda: (torch.randn(3, 5, 4),))

    recording = check(build, tmp_path / "ref", level=level)

    # then the layer has its sequence and its state on both sides
    layer = one_call(recording, kind.partition("-")[0], "1.layer")
    outputs = {record.name for record in layer.with_role(Role.OUTPUT)}
    state = {"result.1.0", "result.1.1"} if kind.startswith("LSTM") else {"result.1"}
    assert outputs >= state | ({"result.0.data", "result.0.batch_sizes"} if packed else set())
    assert layer.with_role(Role.GRAD_OUTPUT)
    assert layer.with_role(Role.GRAD_INPUT)
    if packed:
        inputs = {record.name for record in layer.with_role(Role.INPUT)}
        assert inputs >= {"args.0.data", "args.0.batch_sizes"}
    else:
        stem = one_call(recording, "torch.nn.Linear", "0")
        assert same(values(stem, Role.GRAD_OUTPUT), values(layer, Role.GRAD_INPUT))
    if level == "api":
        # and every weight of it gets a gradient from its operator
        operator = one_call(recording, kind.partition("-")[0].lower().replace("rnn", "rnn_tanh"))
        weights = {record.name for record in operator.with_role(Role.PARAM_GRAD)}
        torch.manual_seed(7)
        model = build().model
        assert model is not None
        assert weights == {
            name for name, _ in model.named_parameters() if name.startswith("1.layer")
        }


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.attention(x, x, x)
        return output


@pytest.mark.parametrize("level", LEVELS)
def test_multihead_attention(tmp_path: Path, level: str) -> None:
    recording = check(
        lambda: supervised(nn.Sequential(nn.Linear(4, 4), Attention()), attended), tmp_path / "ref",
        level=level,
    )  # fmt: skip

    layer = one_call(recording, "MultiheadAttention", "1.attention")
    assert [record.name for record in layer.with_role(Role.INPUT)] == ["args.0", "args.1", "args.2"]
    assert len(layer.with_role(Role.OUTPUT)) == 2


def attended() -> tuple[Tensor, ...]:
    return (torch.randn(2, 5, 4),)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.parametrize("level", LEVELS)
def test_a_transformer_in_training(tmp_path: Path, level: str) -> None:
    recording = check(lambda: supervised(transformer(), attended), tmp_path / "ref", level=level)

    layers = [one_call(recording, "TransformerEncoderLayer", f"layers.{n}") for n in (0, 1)]
    assert same(values(layers[0], Role.OUTPUT), values(layers[1], Role.INPUT))
    assert same(values(layers[0], Role.GRAD_OUTPUT), values(layers[1], Role.GRAD_INPUT))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_the_fused_path_of_evaluation_is_left_alone(
    tmp_path: Path, level: str, masked: bool
) -> None:
    # given a frozen teacher in evaluation mode, whose layers torch runs as one kernel each
    def build() -> Training:
        teacher, model = transformer().eval(), nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mask = torch.zeros(2, 5, dtype=torch.bool)
        mask[1, 3:] = True

        def step(_: int) -> list[Tensor]:
            optimizer.zero_grad()
            x = torch.randn(2, 5, 4)
            output = model(x)
            with torch.no_grad():
                target = teacher(x, src_key_padding_mask=mask if masked else None)
            loss = (output[:, : target.shape[1]] - target).square().mean()
            loss.backward()
            optimizer.step()
            return [loss.detach(), target]

        return Training(model, step, {"teacher": teacher}, [optimizer])

    recording = check(build, tmp_path / "ref", level=level)

    # then the teacher is recorded at its boundary, and the recording says so
    teacher = one_call(recording, "TransformerEncoder", "TransformerEncoder")
    assert len(teacher.with_role(Role.OUTPUT)) == 1
    assert any("TransformerEncoder" in what for what in not_seen(recording))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4, padding_idx=0)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(tokens)))


def test_tied_weights_have_one_name_and_two_gradients(tmp_path: Path) -> None:
    recording = check(
        lambda: supervised(Tied(), lambda: (torch.randint(0, 7, (3, 5)),)), tmp_path / "ref"
    )

    looked_up = one_call(recording, "embedding", "embedding")
    projected = one_call(recording, "linear", "head")
    parts = [
        next(as_tensor(r) for r in call.with_role(Role.PARAM_GRAD))
        for call in (looked_up, projected)
    ]
    names = {r.name for c in (looked_up, projected) for r in c.with_role(Role.PARAM_GRAD)}
    assert names == {"embedding.weight"}
    total = as_tensor(named(recording, "embedding.weight", Role.PARAM_GRAD)[-1])
    assert torch.allclose(parts[0] + parts[1], total)
    assert len(named(recording, "embedding.weight", Role.PARAM_AFTER)) == 1
    tokens = values(looked_up, Role.INPUT)
    assert tokens.dtype == torch.int64


def test_sparse_gradients_are_named_as_such(tmp_path: Path) -> None:
    def build() -> Training:
        model = nn.Embedding(7, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters())
        return supervised(model, lambda: (torch.randint(0, 7, (3,)),), optimizer=optimizer)

    recording = check(build, tmp_path / "ref")

    grad = named(recording, "weight", Role.PARAM_GRAD)[-1]
    assert grad.content.note == "sparse_coo layout"


@pytest.mark.parametrize("level", LEVELS)
def test_running_statistics_are_recorded_as_the_layer_leaves_them(
    tmp_path: Path, level: str
) -> None:
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.2))
        return supervised(model, lambda: (torch.randn(6, 4),))

    recording = check(build, tmp_path / "ref", level=level)

    layer = one_call(recording, "BatchNorm1d", "1")
    x = values(layer, Role.INPUT)
    buffers = {record.name: as_tensor(record) for record in layer.with_role(Role.BUFFER)}
    assert torch.allclose(buffers["1.running_mean"], 0.2 * x.mean(0))
    assert torch.allclose(buffers["1.running_var"], 0.8 + 0.2 * x.var(0))
    assert int(buffers["1.num_batches_tracked"]) == 1
    if level == "api":
        operator = one_call(recording, "batch_norm", "1")
        changed = {record.name: as_tensor(record) for record in operator.with_role(Role.BUFFER)}
        assert same(changed["1.running_mean"], buffers["1.running_mean"])
    # and the next step starts from there
    following = one_call(recording, "BatchNorm1d", "1", step=1)
    again = {record.name: as_tensor(record) for record in following.with_role(Role.BUFFER)}
    assert int(again["1.num_batches_tracked"]) == 2


def test_a_layer_in_evaluation_changes_no_buffer(tmp_path: Path) -> None:
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval())
        return supervised(model, lambda: (torch.randn(6, 4),))

    recording = check(build, tmp_path / "ref")

    assert one_call(recording, "BatchNorm1d", "1").with_role(Role.BUFFER) == ()


@pytest.mark.parametrize("level", LEVELS)
def test_dropout_draws_what_it_would_have_drawn(tmp_path: Path, level: str) -> None:
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.AlphaDropout(0.3))
        return supervised(model, lambda: (torch.randn(6, 4),))

    recording = check(build, tmp_path / "ref", level=level)

    layer = one_call(recording, "Dropout", "1")
    kept = values(layer, Role.OUTPUT) != 0
    assert same(values(layer, Role.OUTPUT)[kept], values(layer, Role.INPUT)[kept] * 2)
    assert same(
        values(layer, Role.GRAD_INPUT),
        torch.where(kept, values(layer, Role.GRAD_OUTPUT) * 2, values(layer, Role.GRAD_OUTPUT) * 0),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", LEVELS)
def test_autocast(tmp_path: Path, level: str, dtype: torch.dtype) -> None:
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
        training = supervised(model, lambda: (torch.randn(6, 4),))
        plain = training.step

        def step(number: int) -> Tensor:
            with torch.autocast("cpu", dtype):
                return plain(number)

        training.step = step
        return training

    recording = check(build, tmp_path / "ref", level=level)

    name = str(dtype).removeprefix("torch.")
    first, norm = (
        one_call(recording, "torch.nn.Linear", "0"),
        one_call(recording, "LayerNorm", "1"),
    )
    assert values(first, Role.INPUT).dtype == torch.float32
    assert first.with_role(Role.OUTPUT)[0].dtype == name
    assert first.with_role(Role.GRAD_OUTPUT)[0].dtype == name
    assert same(values(norm, Role.GRAD_INPUT), values(first, Role.GRAD_OUTPUT))
    precision = recording.ranks["rank0"].manifest.mixed_precision
    assert precision == {"autocast_cpu": f"torch.{name}"}
    weights = {record.dtype for record in named(recording, "0.weight", Role.PARAM_GRAD)}
    assert weights == {"float32"}


def test_lazy_modules_are_named_once_they_know_their_size(tmp_path: Path) -> None:
    def build() -> Training:
        model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD([{"params": [model[1].weight]}], lr=0.1)
        return supervised(model, lambda: (torch.randn(6, 4),), optimizer=optimizer)

    recording = check(build, tmp_path / "ref")

    assert named(recording, "0.weight", Role.INPUT, step=1)


def test_modules_made_inside_forward_are_recorded(tmp_path: Path) -> None:
    class OnTheFly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "late"):
                self.late = nn.Linear(4, 4)
            return nn.Dropout(0.1)(self.late(nn.ReLU()(self.lin(x))))

    recording = check(lambda: supervised(OnTheFly(), lambda: (torch.randn(6, 4),)), tmp_path / "r")

    assert one_call(recording, "torch.nn.ReLU").site.module == "ReLU"
    assert one_call(recording, "torch.nn.Dropout", step=1).site.module == "Dropout"
    late = one_call(recording, "linear", "late", step=1)
    assert {r.name for r in late.with_role(Role.PARAM_GRAD)} == {"late.weight", "late.bias"}
    assert [c.site.module for c in calls(recording, "torch.nn.Linear", kind=CallKind.INIT)] == [
        "lin",
        "late",
    ]


def test_a_part_of_the_model_that_is_called_alone_keeps_its_path(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 2)

    def build() -> Training:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = nn.MSELoss()(model.head(model.encoder(torch.ones(3, 4))), torch.ones(3, 2))
            loss.backward()
            optimizer.step()
            return loss.detach()

        # the recorder is not told the model, it has to find it
        return Training(None, step, {"model": model}, [optimizer])

    recording = check(build, tmp_path / "ref")

    paths = {call.site.module for call in calls(recording, "torch.nn.Linear")}
    assert paths == {"encoder.0", "head"}
    for step in (0, 1):
        assert one_call(recording, "torch.nn.MSELoss", step=step).site.module == "MSELoss"
