"""`lockstep weights` and `lockstep.weights`: equal only where it is proven, and what differs by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import lockstep
from lockstep.cli.main import main

Tensors = dict[str, torch.Tensor]
Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the verb, and gives its exit code and the first line that it prints."""

    def run(*words: object) -> tuple[int, str]:
        code = main(["weights", *map(str, words)])
        shown = capsys.readouterr()
        return code, (shown.out or shown.err).splitlines()[0]

    return run


def network(layers: int = 4, seed: int = 0, hidden: int = 16, heads: int = 4) -> Tensors:
    """The weights of a small decoder, as a trainer names them; the head is a copy of the embedding."""
    draw = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    found = {"model.embed.weight": drawn(48, hidden)}
    for layer in range(layers):
        inside = f"model.layers.{layer}"
        for name, rows in (("q", hidden), ("k", hidden // 2), ("v", hidden // 2)):
            found[f"{inside}.attn.{name}.weight"] = drawn(rows, hidden)
            found[f"{inside}.attn.{name}.bias"] = torch.zeros(rows)
        found[f"{inside}.attn.o.weight"] = drawn(hidden, hidden)
        found[f"{inside}.mlp.gate.weight"] = drawn(3 * hidden, hidden)
        found[f"{inside}.mlp.up.weight"] = drawn(3 * hidden, hidden)
        found[f"{inside}.mlp.down.weight"] = drawn(hidden, 3 * hidden)
        found[f"{inside}.norm.weight"] = torch.ones(hidden)
    found["model.norm.weight"] = 1 + 0.1 * drawn(hidden)
    return found


def after_a_step(weights: Tensors, rate: float = 1e-3) -> Tensors:
    return {
        name: one + rate * torch.randn(one.shape, generator=torch.Generator().manual_seed(7))
        for name, one in weights.items()
    }


def fused(weights: Tensors, groups: int = 1) -> Tensors:
    """The same weights as an engine keeps them: q, k, v in one tensor, by head groups; gate and up in one."""
    kept = (".attn.o", "norm", "embed", "down")
    engine = {name: one for name, one in weights.items() if any(word in name for word in kept)}
    for layer in range(sum(name.endswith("attn.o.weight") for name in weights)):
        inside = f"model.layers.{layer}"
        for word in ("weight", "bias"):
            parts = [weights[f"{inside}.attn.{name}.{word}"] for name in "qkv"]
            shares = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
            engine[f"{inside}.attn.qkv.{word}"] = torch.cat(shares, 1).reshape(-1, *parts[0].shape[1:])  # fmt: skip
        both = [weights[f"{inside}.mlp.{name}.weight"] for name in ("gate", "up")]
        engine[f"{inside}.mlp.gate_up.weight"] = torch.cat(both)
    return engine


def noted(folder: Path, weights: Tensors | torch.nn.Module, step: int = 0) -> None:
    for note in folder.glob(f"weights.step-{step}.rank-0*"):
        note.unlink()
    lockstep.weights(weights, step=step, directory=folder)


# -- equal


def test_the_same_weights_in_two_processes_are_equal(tmp_path: Path, say: Say) -> None:
    weights = network()
    noted(tmp_path / "trainer", weights)
    noted(tmp_path / "engine", {name: one.clone() for name, one in weights.items()})
    said = f"equal: {len(weights)} of {len(weights)} tensors"
    assert say(tmp_path / "trainer", tmp_path / "engine") == (0, said)


def test_an_engine_in_bfloat16_is_equal_after_a_cast(tmp_path: Path, say: Say) -> None:
    weights = network()
    noted(tmp_path / "trainer", weights)
    noted(tmp_path / "engine", {name: one.bfloat16() for name, one in weights.items()})
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert (code, line) == (0, f"equal after a cast to bfloat16: {len(weights)} of {len(weights)} tensors")  # fmt: skip


def test_a_cast_that_is_one_unit_off_is_no_cast(tmp_path: Path, say: Say) -> None:
    # given bfloat16 weights of which one element was rounded the other way
    weights = network()
    engine = {name: one.bfloat16() for name, one in weights.items()}
    engine["model.layers.2.attn.o.weight"].view(torch.int16)[3, 5] += 1
    noted(tmp_path / "trainer", weights)
    noted(tmp_path / "engine", engine)
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert code == 1
    assert line.startswith(f"differs: 1 of {len(weights)} tensors")
    assert "model.layers.2.attn.o.weight" in line


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_fused_weights_are_told_by_their_contents(tmp_path: Path, say: Say, groups: int) -> None:
    weights = network()
    noted(tmp_path / "trainer", weights)
    engine = {name: one.bfloat16() for name, one in fused(weights, groups).items()}
    noted(tmp_path / "engine", engine)
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert (code, line) == (0, f"equal after a cast to bfloat16: {len(engine)} of {len(engine)} tensors")  # fmt: skip


def test_a_fused_weight_with_one_wrong_row_differs(tmp_path: Path, say: Say) -> None:
    weights = network()
    engine = fused(weights, 2)
    engine["model.layers.1.attn.qkv.weight"][9, 0] += 1e-6
    noted(tmp_path / "trainer", weights)
    noted(tmp_path / "engine", engine)
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert code == 1
    assert line == f"differs: 1 of {len(engine)} tensors"


def test_ranks_parts_of_a_fused_engine_are_put_together(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an engine of two ranks: each has half of the heads, the first or second half of columns of o and down
    weights = network()
    noted(tmp_path / "trainer", weights)
    engine = fused(weights, 2)
    for rank in range(2):
        part = dict(engine)
        for name, one in engine.items():
            if "qkv" in name or "embed" in name:
                part[name] = one.chunk(2)[rank]
            elif "gate_up" in name:
                gate, up = one.chunk(2)
                part[name] = torch.cat([gate.chunk(2)[rank], up.chunk(2)[rank]])
            elif ".attn.o" in name or "down" in name:
                part[name] = one.chunk(2, 1)[rank]
        monkeypatch.setattr("lockstep_sampling.weights.live._rank", lambda rank=rank: rank)
        lockstep.weights(part, step=0, directory=tmp_path / "engine")
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert (code, line) == (0, f"equal: {len(engine)} of {len(engine)} tensors")


def test_a_transposed_weight_of_another_shape_is_the_same_and_a_square_one_is_not(
    tmp_path: Path, say: Say
) -> None:
    weights = {"up.weight": torch.randn(8, 24), "square.weight": torch.randn(8, 8)}
    save_file(weights, tmp_path / "one.safetensors")
    turned = {name: one.T.contiguous() for name, one in weights.items()}
    save_file({**weights, "up.weight": turned["up.weight"]}, tmp_path / "two.safetensors")
    code, line = say(tmp_path / "one.safetensors", tmp_path / "two.safetensors")
    assert (code, line) == (
        2,
        "equal: 1 of 2 tensors; 1 tensor not judged (square, where others are transposed)",
    )
    save_file(turned, tmp_path / "all.safetensors")
    assert say(tmp_path / "one.safetensors", tmp_path / "all.safetensors")[0] == 0
    save_file({**weights, "square.weight": turned["square.weight"]}, tmp_path / "three.safetensors")
    code, line = say(tmp_path / "one.safetensors", tmp_path / "three.safetensors")
    assert code == 1
    assert line.startswith("differs: 1 of 2 tensors, largest relative difference about 1.")


def test_an_engine_that_pads_its_vocabulary_by_zeros_is_equal_and_by_others_is_not(
    tmp_path: Path, say: Say
) -> None:
    weights = network(1)
    longer = torch.cat([weights["model.embed.weight"], torch.zeros(16, 16)])
    padded = {**weights, "model.embed.weight": longer}
    noted(tmp_path / "trainer", weights)
    noted(tmp_path / "engine", padded)
    assert say(tmp_path / "trainer", tmp_path / "engine")[0] == 0
    padded["model.embed.weight"][-1, -1] = 1e-30
    noted(tmp_path / "engine", padded)
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert code == 1
    assert line.startswith("differs: 1 of")


# -- stale


def test_an_engine_one_step_behind_is_named(tmp_path: Path, say: Say) -> None:
    # given a trainer at steps 41 and 42, and an engine that got 42 late
    before = network()
    now = after_a_step(before)
    noted(tmp_path / "trainer", before, 41)
    noted(tmp_path / "trainer", now, 42)
    noted(tmp_path / "engine", fused(before), 42)
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert code == 1
    assert line == "one step behind: equal to the reference's weights of step 41"


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_layer_that_was_not_updated_is_named(tmp_path: Path, say: Say, is_fused: bool) -> None:
    before = network()
    now = after_a_step(before)
    engine = {name: (before if ".layers.3." in name else now)[name] for name in now}
    engine = fused(engine) if is_fused else engine
    noted(tmp_path / "trainer", before, 41)
    noted(tmp_path / "trainer", now, 42)
    noted(tmp_path / "engine", engine, 42)
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert code == 1
    assert line.startswith("model.layers.3 not updated (")
    assert line.endswith("equal to the reference's weights of step 41")


def test_a_layer_that_is_as_in_the_engines_own_note_before_is_named(
    tmp_path: Path, say: Say
) -> None:
    # given a checkpoint of the trainer alone, and two notes of the engine
    before = network()
    now = after_a_step(before)
    save_file(now, tmp_path / "trainer.safetensors")
    noted(tmp_path / "engine", before, 1)
    noted(tmp_path / "engine", {name: (before if ".layers.0." in name else now)[name] for name in now}, 2)  # fmt: skip
    code, line = say(tmp_path / "trainer.safetensors", tmp_path / "engine")
    assert code == 1
    assert line.startswith("model.layers.0 not updated")
    assert line.endswith("equal to the candidate's own weights of step 1")


def test_swapped_layers_are_named(
    tmp_path: Path, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = network()
    engine = dict(weights)
    one, two = "model.layers.0.attn.o.weight", "model.layers.1.attn.o.weight"
    engine[one], engine[two] = weights[two], weights[one]
    noted(tmp_path / "trainer", weights)
    noted(tmp_path / "engine", engine)
    assert main(["weights", str(tmp_path / "trainer"), str(tmp_path / "engine"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    tensors = told["steps"][0]["tensors"]
    moved = {pair["candidate"][0]: pair["equal_to_weight"] for pair in tensors}
    moved = {name: other for name, other in moved.items() if other is not None}
    assert moved == {one: two, two: one}


def test_each_step_is_compared(tmp_path: Path, say: Say) -> None:
    versions = [network(1, seed) for seed in range(3)]
    for step, weights in enumerate(versions):
        noted(tmp_path / "trainer", weights, step)
        noted(tmp_path / "engine", weights, step)
    assert say(tmp_path / "trainer", tmp_path / "engine")[1].endswith("at each of 3 steps")
    noted(tmp_path / "engine", versions[0], 2)
    said = "step 2: 2 steps behind: equal to the reference's weights of step 0"
    assert say(tmp_path / "trainer", tmp_path / "engine") == (1, said)
    assert say(tmp_path / "trainer", tmp_path / "engine", "--steps", "0:2")[0] == 0


# -- what was not compared


def test_quantised_weights_are_never_equal(tmp_path: Path, say: Say) -> None:
    codes = torch.randint(-9, 9, (8, 8), dtype=torch.int8)
    half = torch.randn(8, 8).to(torch.float8_e4m3fn)
    weights = {"a": codes, "b": half, "c": torch.randn(3)}
    noted(tmp_path / "trainer", weights)
    noted(tmp_path / "engine", weights)
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert code == 2
    assert line == "equal: 1 of 3 tensors; 2 tensors not judged (quantised: int8, float8_e4m3fn)"


def test_missing_weights_are_named_on_either_side(tmp_path: Path, say: Say) -> None:
    weights = network(1)
    noted(tmp_path / "trainer", weights)
    engine = {name: one for name, one in weights.items() if name != "model.norm.weight"}
    noted(tmp_path / "engine", {**engine, "rotary.inv_freq": torch.randn(5)})
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert code == 1
    assert "1 tensor missing in the candidate: model.norm.weight" in line
    assert "1 tensor missing in the reference: rotary.inv_freq" in line


def test_tied_weights_are_a_copy(tmp_path: Path, say: Say) -> None:
    weights = network(1)
    noted(tmp_path / "trainer", {**weights, "lm_head.weight": weights["model.embed.weight"]})
    noted(tmp_path / "engine", weights)
    assert say(tmp_path / "trainer", tmp_path / "engine")[0] == 0
    # and a head that is none differs
    noted(tmp_path / "trainer", {**weights, "lm_head.weight": weights["model.embed.weight"] + 1})
    assert say(tmp_path / "trainer", tmp_path / "engine")[0] == 1


def test_a_bias_of_zeros_that_is_missing_is_no_copy_of_another(tmp_path: Path, say: Say) -> None:
    weights = network(1)
    noted(tmp_path / "trainer", weights)
    noted(tmp_path / "engine", {name: one for name, one in weights.items() if "k.bias" not in name})
    code, line = say(tmp_path / "trainer", tmp_path / "engine")
    assert code == 1
    assert "missing in the candidate: model.layers.0.attn.k.bias" in line


def test_weights_on_the_meta_device_are_not_judged(tmp_path: Path, say: Say) -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(3, 3)
    noted(tmp_path / "one", model)
    noted(tmp_path / "two", torch.nn.Linear(3, 3))
    code, line = say(tmp_path / "one", tmp_path / "two")
    assert code == 2
    assert "2 tensors not judged (on the meta device: it has no numbers)" in line


def test_a_model_without_weights_says_nothing(tmp_path: Path, say: Say) -> None:
    noted(tmp_path / "one", torch.nn.ReLU())
    noted(tmp_path / "two", torch.nn.ReLU())
    code, line = say(tmp_path / "one", tmp_path / "two")
    assert code == 2
    assert "holds no weights" in line


def test_wrappers_and_nan_do_not_hide_a_difference(tmp_path: Path, say: Say) -> None:
    model = torch.nn.Linear(4, 4)
    noted(tmp_path / "one", torch.nn.ModuleDict({"module": model}))
    model.weight.data[0, 0] = float("nan")
    noted(tmp_path / "two", model)
    code, line = say(tmp_path / "one", tmp_path / "two")
    assert (code, line[:24]) == (1, "differs: 1 of 2 tensors,")


# -- checkpoints, recordings, bad input


def test_checkpoints_of_each_form_are_read(tmp_path: Path, say: Say) -> None:
    weights = network(2)
    names = list(weights)
    save_file({name: weights[name] for name in names[::2]}, tmp_path / "model-1.safetensors")
    save_file({name: weights[name] for name in names[1::2]}, tmp_path / "model-2.safetensors")
    files = {name: f"model-{1 + number % 2}.safetensors" for number, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    torch.save({"model": weights, "epoch": 3}, tmp_path / "trainer.pt")
    assert say(tmp_path, tmp_path / "trainer.pt") == (0, f"equal: {len(names)} of {len(names)} tensors")  # fmt: skip
    # and an absent shard is told
    (tmp_path / "model-2.safetensors").unlink()
    code, line = say(tmp_path, tmp_path / "trainer.pt")
    assert code == 2
    assert "model-2.safetensors: is in the index, but not there; copy it too" in line


@pytest.mark.parametrize("save", ["sketch", "program", "tensors"])
def test_a_recording_has_the_weights_before_and_after_its_steps(
    tmp_path: Path, say: Say, save: str
) -> None:
    # given a recorded training of two steps that notes its weights after each
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 20), torch.nn.BatchNorm1d(20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noted(tmp_path / "notes", model)
    with lockstep.record(tmp_path / "ref", model=model, steps="0:2", save=save):
        for step in range(1, 3):
            model(torch.randn(8, 40)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            lockstep.weights(model, "inside")
            noted(tmp_path / "notes", model, step)
    # then each version is equal
    code, line = say(tmp_path / "notes", tmp_path / "ref", "--note", "weights")
    assert code == 2  # the recording's own notes have another name
    assert "holds no note of weights, but of inside" in line
    for note in (tmp_path / "ref" / "weights").iterdir():
        note.unlink()
    code, line = say(tmp_path / "notes", tmp_path / "ref", "--steps", "1:3")
    assert (code, line) == (0, "equal: 7 of 7 tensors, at each of 2 steps")


@pytest.mark.parametrize(
    "given",
    ["no", "one.txt", "short.safetensors", "bad.pt", "list.pt", "empty", "odd.step-0.rank-0.weights.npz"],
)  # fmt: skip
def test_bad_input_is_one_sentence(tmp_path: Path, say: Say, given: str) -> None:
    (tmp_path / "one.txt").write_text("weights")
    (tmp_path / "short.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    (tmp_path / "bad.pt").write_bytes(b"no zip")
    (tmp_path / "odd.step-0.rank-0.weights.npz").write_bytes(b"no zip")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "empty").mkdir()
    noted(tmp_path / "good", network(1))
    code, line = say(tmp_path / "good", tmp_path / given)
    assert code == 2
    assert line.startswith(f"lockstep: {tmp_path / given}: ")


def test_a_note_needs_a_name_and_a_model_and_replaces_none(tmp_path: Path) -> None:
    assert lockstep.weights({}) is None
    with pytest.raises(lockstep.LockstepError, match="'a/b' is no name"):
        lockstep.weights({}, "a/b", directory=tmp_path)
    with pytest.raises(lockstep.LockstepError, match=r"got int; give a torch\.nn\.Module"):
        lockstep.weights(3, directory=tmp_path)
    lockstep.weights({}, step=4, directory=tmp_path)
    with pytest.raises(lockstep.LockstepError, match="is there already, of an earlier run"):
        lockstep.weights({}, step=4, directory=tmp_path)
    with pytest.raises(lockstep.LockstepError, match="step is -1; give a whole number from 0"):
        lockstep.weights({}, step=-1, directory=tmp_path)


_TWO_RANKS = """
import sys, torch, lockstep
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
def made():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(24, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))
lockstep.weights(made(), "plain", directory=folder)
sharded = made()
from torch.distributed.device_mesh import init_device_mesh
fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
lockstep.weights(sharded, "fsdp2", directory=folder)
lockstep.weights(DistributedDataParallel(made()), "ddp", directory=folder)
broken = made()
if rank == 1: broken[0].weight.data[3, 4] += 1e-6
lockstep.weights(broken, "apart", directory=folder)
dist.destroy_process_group()
"""


def test_two_ranks_of_ddp_and_fsdp2_hold_the_weights_of_one_process(
    tmp_path: Path, say: Say
) -> None:
    (tmp_path / "ranks.py").write_text(_TWO_RANKS)
    ranks = [
        subprocess.Popen([sys.executable, str(tmp_path / "ranks.py"), str(rank), str(tmp_path)])
        for rank in range(2)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    plain = tmp_path / "plain.step-0.rank-0.weights.npz"
    for name in ("fsdp2", "ddp", "apart"):
        (tmp_path / name).mkdir()
        for note in tmp_path.glob(f"{name}.step*"):
            note.rename(tmp_path / name / note.name)
    assert say(plain, tmp_path / "fsdp2") == (0, "equal: 4 of 4 tensors")
    assert say(plain, tmp_path / "ddp") == (0, "equal: 4 of 4 tensors")
    code, line = say(plain, tmp_path / "apart")
    assert code == 1
    assert line.startswith("differs: 1 of 4 tensors")
    assert np.load(plain)["index"].size < 4096
