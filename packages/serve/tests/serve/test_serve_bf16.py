"""BF16, which NumPy does not have: every model and request that has it is refused by its name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
import serve_models
import torch
from onnx import TensorProto, helper
from serve_asgi import application, asked, python_model, repository_of
from serve_process import Served

from lockstep.core.errors import UsageError
from lockstep_serve.opening import Source
from lockstep_serve.protocol import messages

REFUSED = "is bfloat16, which is not served; have the model itself convert it, from or to float32"

PYTHON = """
import ml_dtypes
import numpy as np
from lockstep_serve.servable import Signature, TensorSpec

class Brain:
    platform = "python"
    signature = Signature(
        (TensorSpec("x", np.dtype("float32"), (-1, 2)),), (TensorSpec("y", np.dtype(ml_dtypes.bfloat16), (-1, 2)),)
    )

def load(version_dir):
    return Brain()
"""


def onnx_model(folder: Path, given: int, made: int) -> Path:
    node = helper.make_node("Cast", ["x"], ["y"], to=made)
    inputs = [serve_models.tensor("x", ["n", 2], given)]
    return serve_models.write(
        folder / "m.onnx", [node], inputs, [serve_models.tensor("y", ["n", 2], made)]
    )


def program(folder: Path, given: torch.dtype, made: torch.dtype) -> Path:
    class Cast(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(made) + 1

    path = folder / "m.pt2"
    torch.export.save(torch.export.export(Cast(), (torch.zeros(2, 2, dtype=given),)), path)
    return path


F32, BF16 = TensorProto.FLOAT, TensorProto.BFLOAT16


def test_models_with_it_are_refused_by_the_name_of_the_tensor_and_their_twins_are_served(
    tmp_path: Path,
) -> None:
    refused = {
        onnx_model(tmp_path / "onnx_out", F32, BF16): "y",
        onnx_model(tmp_path / "onnx_in", BF16, F32): "x",
        python_model(tmp_path, "python", PYTHON): "y",
    }
    for tensor, *dtypes in (
        ("add", torch.float32, torch.bfloat16),
        ("x", torch.bfloat16, torch.float32),
    ):
        (tmp_path / tensor).mkdir()
        refused[program(tmp_path / tensor, *dtypes)] = tensor
    for path, tensor in refused.items():
        with pytest.raises(UsageError) as raised:
            Source(path, "cpu").open()
        assert f"{path}: {tensor} {REFUSED}" in str(raised.value)
    (tmp_path / "twin").mkdir()
    for path in (
        onnx_model(tmp_path / "twin", F32, TensorProto.FLOAT16),
        program(tmp_path / "twin", torch.float32, torch.float16),
    ):
        assert Source(path, "cpu").open().signature.outputs[0].dtype == "float16"


@pytest.mark.parametrize("raw", [False, True])
def test_a_request_with_it_is_refused_by_name_over_http(tmp_path: Path, raw: bool) -> None:
    serve_models.linear(tmp_path / "linear" / "1" / "model.onnx")

    async def go(datatype: str) -> tuple[int, Any]:
        repository = await repository_of(tmp_path)
        one: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": [1, 4]}
        size = 8 if datatype == "BF16" else 16
        one |= {"parameters": {"binary_data_size": size}} if raw else {"data": [1, 2, 3, 4]}
        text = json.dumps({"inputs": [one]}).encode()
        headers = {"inference-header-content-length": str(len(text))} if raw else {}
        parts = [text + bytes(size if raw else 0)]
        found = await asked(application(repository), "/v2/models/linear/infer", parts, headers)
        await repository.close()
        return found

    status, told = asyncio.run(go("BF16"))
    assert status == 400
    assert told["error"].startswith("x: datatype 'BF16' is none of BOOL, ")
    assert asyncio.run(go("FP32"))[0] == 200


@pytest.mark.parametrize("raw", [False, True])
def test_a_request_with_it_is_refused_by_name_over_grpc(served: Served, raw: bool) -> None:
    one: dict[str, Any] = {"name": "x", "datatype": "BF16", "shape": [1, 4]}
    asked = messages.message_class("ModelInferRequest")(
        model_name="linear", inputs=[one], raw_input_contents=[bytes(8)] if raw else []
    )
    with grpc.insecure_channel(served.grpc) as channel:
        call = channel.unary_unary(
            f"/{messages.SERVICE}/ModelInfer",
            request_serializer=messages.message_class("ModelInferRequest").SerializeToString,
            response_deserializer=messages.message_class("ModelInferResponse").FromString,
        )
        with pytest.raises(grpc.RpcError) as raised:
            call(asked, timeout=60)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details().startswith("x: datatype 'BF16' is none of BOOL, ")
