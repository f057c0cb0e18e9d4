"""An ONNX model, by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep.terminal import message
from lockstep_serve.failures import RequestError
from lockstep_serve.neighbours import neighbours
from lockstep_serve.servable import (
    BYTES,
    Array,
    Arrays,
    Signature,
    TensorSpec,
    unserved,
)

_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype("float32"), "tensor(double)": np.dtype("float64"),
    "tensor(float16)": np.dtype("float16"), "tensor(bool)": np.dtype("bool"), "tensor(string)": BYTES,
    **{
        f"tensor({kind}{bits})": np.dtype(f"{kind}{bits}")
        for kind in ("int", "uint") for bits in (8, 16, 32, 64)
    },
}  # fmt: skip
"""What ONNX Runtime calls an element type."""

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "npu": "CANNExecutionProvider",
              "rocm": "ROCMExecutionProvider", "openvino": "OpenVINOExecutionProvider"}  # fmt: skip


class OnnxServable:
    """A session of ONNX Runtime.

    Parameters
    ----------
    path
        The file.
    device
        "cpu", or another that an execution provider is installed for.
    content
        What to open in the file's place.
    threads
        Of a run; 0 for as many as there are cores.

    Raises
    ------
    UsageError
        If the file is no model, or nothing here runs it on that device.
    """

    platform = "onnxruntime"
    leaves_arrays_alone = True
    """It writes into no input, and its results are nobody else's."""

    def __init__(
        self, path: Path, device: str, content: bytes | None = None, *, threads: int = 0
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError(
                f"{path}: ONNX Runtime is not installed here: pip install 'lockstep-numerics[serve]'"
            ) from error
        kind, _, number = device.partition(":")
        provider = _PROVIDERS.get(kind, kind)
        if provider not in onnxruntime.get_available_providers():
            available = ", ".join(onnxruntime.get_available_providers())
            raise UsageError(f"--device {device}: ONNX Runtime has {available} here")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        try:
            chosen = (provider, {"device_id": number}) if number else provider
            self._session = onnxruntime.InferenceSession(
                content or path, options, providers=[chosen]
            )
        except Exception as error:
            raise UsageError(
                f"{path}: is not a model for ONNX Runtime ({message(str(error))})"
            ) from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self.signature = Signature(
            tuple(_spec(one, path) for one in inputs), tuple(_spec(one, path) for one in outputs)
        )
        self._path, self._device = path, device
        self._texts = [one.name for one in self.signature.outputs if one.dtype == BYTES]

    def switch(self) -> Any:
        """Return an object that ends a run from another thread by `terminate`; None for an accelerator."""
        import onnxruntime

        return onnxruntime.RunOptions() if self._device == "cpu" else None

    def infer(self, inputs: Arrays, switch: Any = None) -> dict[str, Array]:
        """Run the session; see `Servable`."""
        given = {name: _texts(one) if one.dtype == BYTES else one for name, one in inputs.items()}
        results = self._session.run(None, given, switch)
        named = dict(zip((one.name for one in self.signature.outputs), results, strict=True))
        for name in self._texts:
            flat = [one.encode() if isinstance(one, str) else one for one in named[name].ravel()]
            named[name] = np.array(flat, object).reshape(named[name].shape)
        return named

    def mixing(self, without: Collection[str]) -> str:
        """Why instances are not shown to be independent; see `HasGraph`."""
        try:
            from lockstep_serve.independence import onnx_graph
        except ImportError as error:
            return f"its graph is not looked into, as {error.name} is not installed"
        return onnx_graph.mixing(self._path, without)

    def moved(self, *, seed: int) -> OnnxServable:
        """The model with every weight at a neighbour of its number, for what rounding makes of it."""
        import onnx

        model, draw = onnx.load(self._path), np.random.default_rng(seed)
        for tensor in model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if (
                array.dtype.kind == "f" and array.ndim
            ):  # a single number is a constant of the program
                tensor.CopyFrom(onnx.numpy_helper.from_array(neighbours(array, draw), tensor.name))
        return OnnxServable(self._path, self._device, model.SerializeToString())


def _texts(blobs: Array) -> Array:
    """ONNX has texts where the protocol has any bytes."""
    try:
        return np.array([one.decode() for one in blobs.ravel()], object).reshape(blobs.shape)
    except UnicodeDecodeError as error:
        raise RequestError(
            "an element of BYTES is not a text in UTF-8, which ONNX takes only"
        ) from error


def _spec(one: Any, path: Path) -> TensorSpec:
    if one.type not in _DTYPES:
        raise unserved(path, one.name, one.type.removeprefix("tensor(").rstrip(")"))
    shape = tuple(extent if isinstance(extent, int) else -1 for extent in one.shape or ())
    return TensorSpec(one.name, _DTYPES[one.type], shape)
