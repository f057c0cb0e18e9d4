"""Emulated devices: how they live with other modes, with torch's transforms and with the host, and their names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.core.errors import UsageError
from lockstep.devices.emulation.mode import emulate, emulated_device, is_emulated_here
from lockstep.devices.emulation.profiles import parse_profile, profile_table


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Watching(TorchDispatchMode):
    """Keeps what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen.append(result)
        return result


def test_other_modes_see_what_the_device_computes() -> None:
    value = torch.full((2,), 2.0)
    # given a mode that was there before the device, and one that came after
    with Watching() as before, emulate("wrong:mul:scale:3"), Watching() as after:
        # when something is computed, on two devices even, one in the other
        with emulate("wrong:mul:scale:5"):
            results = [value * 1]
        results.append(value * 1)
    # then both see the result of the devices
    assert [item.tolist() for item in results] == [[30.0, 30.0], [6.0, 6.0]]
    assert [*map(id, before.seen)] == [*map(id, after.seen)] == [*map(id, results)]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_device_ends_with_its_block() -> None:
    value = torch.tensor([1.001])
    for _ in range(2):
        with emulate("npu-bf16"):
            assert emulated_device() == "npu-bf16"
            assert is_emulated_here()
        with pytest.raises(UsageError), emulate("npu-bf16"):
            raise UsageError
        assert emulated_device() == ""
        assert torch.dot(value, torch.ones(1)).item() == value.item()
    assert nn.Module.__call__.__qualname__ == "Module._wrapped_call_impl"


def test_in_place_operators_count_as_changes() -> None:
    # given tensors of which autograd or a recorder watches the version
    values = [torch.ones(2), torch.ones(2)]
    plain = [item.clone() for item in values]
    for items in (values, plain):
        # when they are changed one by one and as a list, on a device or not
        with emulate("ftz" if items is values else "wrong:nothing"):
            items[0].mul_(2)
        if items is values:
            with emulate("ftz"):
                torch._foreach_mul_(items, 2.0)
        else:
            torch._foreach_mul_(items, 2.0)
    # then their versions are the same
    assert [item._version for item in values] == [item._version for item in plain] == [2, 1]


def test_inference_mode_reaches_the_same_operators() -> None:
    # given what a layer gives in training
    layer, value = nn.Linear(8, 8), torch.randn(3, 8)
    with emulate("npu-bf16"):
        expected = layer(value)
        # when it runs in inference mode, where operators arrive whole
        with torch.inference_mode():
            result = layer(value)
            lstm = nn.LSTM(8, 8)(value)[0]
    # then it is the same
    assert torch.equal(result, expected)
    assert lstm.shape == (3, 8)


def test_what_makes_the_model_and_its_data_is_left_to_the_host() -> None:
    # given a script that makes a model and a batch, and trains
    def script() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        torch.manual_seed(5)
        weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(8, 8)))
        start = weight.detach().clone()
        batches = []
        optimizer = torch.optim.Adam([weight], lr=0.1)
        for _ in range(2):
            batches.append(torch.sin(torch.randn(4, 8) * 3))
            loss = (batches[-1] @ weight).square().mean()
            loss.backward()
            optimizer.step()
        return start, torch.stack(batches), weight.detach(), torch.get_rng_state()

    bare = script()
    # when it runs on a device that is to do the training only
    with emulate("random-rounding+npu-bf16", training_only=True):
        start, batches, weight, state = script()
    # then its start, its data and its random numbers are those of the bare run, and the rest is not
    assert torch.equal(start, bare[0])
    assert torch.equal(batches, bare[1])
    assert torch.equal(state, bare[3])
    assert not torch.equal(weight, bare[2])
    # while without that, the data is computed on the device too
    with emulate("random-rounding"):
        assert not torch.equal(script()[1], bare[1])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own import
@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # from 2.15 on
def test_transforms_traces_and_sparse_tensors_still_run() -> None:
    layer, value = nn.Linear(4, 4), torch.randn(3, 4)
    with emulate("hf32+reorder+ftz+saturate+random-rounding"):
        assert torch.func.vmap(layer)(value).shape == (3, 4)
        torch.func.jvp(layer, (value,), (value,))
        torch.func.grad(lambda weight: (value @ weight).sum())(layer.weight)
        sparse = torch.eye(3).to_sparse().requires_grad_()
        torch.sparse.mm(sparse, value).sum().backward()
        assert nn.Linear(4, 4, device="meta")(value.to("meta")).is_meta
        assert torch.randn(3, 4, dtype=torch.complex64).abs().shape == (3, 4)
        assert len(list(make_fx(lambda item: (item @ item.T).sum())(value).graph.nodes)) > 3


# --- names ------------------------------------------------------------------------------------------


def test_profiles_are_joined() -> None:
    profile = parse_profile("npu-fp16 + ftz+wrong:gelu+wrong:add:nan:2+random-rounding:9")
    assert (profile.operands, profile.flush_subnormals, profile.random_rounding) == (
        "fp16",
        True,
        9,
    )
    assert [wrong.operator for wrong in profile.wrong] == ["gelu", "add"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("npu-pf16", "there is no 'npu-pf16'; did you mean npu-fp16? choose from npu-fp16"),
        ("", "there is no ''"),
        ("ftz+", "there is no ''"),
        ("wrong", "there is no 'wrong'"),
        ("tf32+hf32", "inputs of products can be rounded to one format only"),
        ("ftz+ftz", "a part is given twice"),
        ("random-rounding:x", "'x' is not a seed"),
        ("wrong:gelu:big", "'big' is not a kind of fault; choose one of scale, offset"),
        ("wrong:gelu:scale:x", "'x' is not an amount"),
        ("wrong:gelu#x", "'x' is not the number of a call"),
        ("wrong:/gelu", "write wrong:[MODULE/]OPERATOR"),
    ],
)
def test_a_wrong_name_ends_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught, emulate(text):
        pass
    assert sentence in str(caught.value)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_every_profile_is_described() -> None:
    table = profile_table()
    assert all(
        name in table
        for name in (
            "npu-fp16",
            "npu-bf16",
            "tf32",
            "hf32",
            "reorder",
            "saturate",
            "random-rounding:7",
        )
    )
    assert max(len(line) for line in table.splitlines()) < 98
