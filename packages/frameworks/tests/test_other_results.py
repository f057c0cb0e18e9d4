"""A layer that returns another thing than its partner: parameters are one, results are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import lockstep
from lockstep.capture.sink import Sink
from lockstep.core.records import Content
from lockstep.core.site import CallKind, Phase, Role
from lockstep_frameworks.mapping.command import text_of
from lockstep_frameworks.mapping.layers import Layer, Weight
from lockstep_frameworks.mapping.propose import proposal_of, propose

Array = np.ndarray[Any, Any]


def call(sink: Sink, module: str, op: str, x: Array, y: Array, **settings: Any) -> None:
    made = sink.open_call(module, op, kind=CallKind.MODULE, arguments=settings, module_class=op)
    made.record(Role.INPUT, "args.0", x)
    made.record(Role.OUTPUT, "result", y)


def recorded(path: Path, *, fused: bool) -> Path:
    """A hidden layer with a relu and a head, as Keras keeps it with the relu inside, or as PyTorch does."""
    random = np.random.default_rng(0)
    first, second = (random.normal(size=shape).astype("f4") for shape in ((8, 6), (4, 8)))
    x = random.normal(size=(5, 6)).astype("f4")
    hidden = x @ first.T
    active = np.maximum(hidden, 0)
    y = active @ second.T
    with Sink(path, {"keras" if fused else "numpy": "1"}) as sink:
        sink.step()
        if fused:
            named = {"net.fc1.kernel": first.T.copy(), "net.fc2.kernel": second.T.copy()}
            sink.parameters(named, dict.fromkeys(("net.fc1", "net.fc2"), "keras.layers.Dense"))
            call(sink, "net.fc1", "keras.layers.Dense", x, active, activation="relu")
            call(sink, "net.fc2", "keras.layers.Dense", active, y, activation="linear")
        else:
            named = {"fc1.weight": first, "fc2.weight": second}
            sink.parameters(named, dict.fromkeys(("fc1", "fc2"), "torch.nn.Linear"))
            call(sink, "fc1", "torch.nn.Linear", x, hidden)
            call(sink, "act", "torch.nn.ReLU", hidden, active)
            call(sink, "fc2", "torch.nn.Linear", active, y)
        sink.loss(np.float32(np.square(y).mean()))
        for name, value in named.items():
            update = sink.open_call(
                name.rpartition(".")[0], "numpy.SGD", kind=CallKind.OPTIMIZER, phase=Phase.OPTIMIZER
            )
            update.record(Role.PARAM, name, value)
            update.record(Role.PARAM_AFTER, name, value)
    return path


def test_a_result_with_an_activation_inside_is_not_held_against_one_without(tmp_path: Path) -> None:
    sides = recorded(tmp_path / "torch", fused=False), recorded(tmp_path / "keras", fused=True)
    # given what is proposed
    proposal = propose(*(lockstep.open(path).ranks["rank0"] for path in sides))
    names = {(line.reference, line.candidate) for line in proposal.lines}
    # then the parameters of both layers are mapped, and the layer that is one in both
    assert {
        ("fc1.weight", "net.fc1.kernel"),
        ("fc2.weight", "net.fc2.kernel"),
        ("fc2", "net.fc2"),
    } <= names
    assert not {("fc1", "net.fc1"), ("", "net")} & names
    assert any("it has relu inside" in one for one in proposal.unmapped)
    # and a sound pair is no fault
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(text_of(proposal))
    assert not lockstep.compare_recordings(*sides, mapping=mapping).origins


def test_a_last_state_is_not_held_against_a_sequence() -> None:
    # given two layers of one kind, of which one returns every step
    weight = Weight("rnn.weight", "O", "", (content(3),))
    sides = [
        [Layer("rnn", "a.LSTM", "lstm", {"bias": weight}, {}, content(*shape))]
        for shape in ((2, 4, 3), (2, 3))
    ]
    # then their parameters are mapped alone, and that is told
    proposal = proposal_of(*sides)
    assert [line.section for line in proposal.lines if line.section == "modules"] == []
    assert proposal.unmapped == ("the result of rnn [a.LSTM]: it has 2 axes, that of rnn has 3",)


def content(*shape: int) -> Content:
    return Content(0, "float32", shape, "cpu", None, None)
