"""An ONNX model, by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lockstep.core.errors import UsageError
from lockstep.core.text import message
from lockstep.wings.serve.servable import BYTES, Array, Arrays, Signature, TensorSpec

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

    Raises
    ------
    UsageError
        If the file is no model, or nothing here runs it on that device.
    """

    platform = "onnxruntime"

    def __init__(self, path: Path, device: str) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError(
                f"{path}: ONNX Runtime is not installed here: pip install 'lockstep-numerics[export]'"
            ) from error
        provider = _PROVIDERS.get(device, device)
        if provider not in onnxruntime.get_available_providers():
            available = ", ".join(onnxruntime.get_available_providers())
            raise UsageError(f"--device {device}: ONNX Runtime has {available} here")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=[provider])
        except Exception as error:
            raise UsageError(
                f"{path}: is no model for ONNX Runtime ({message(str(error))})"
            ) from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self.signature = Signature(
            tuple(_spec(one, path) for one in inputs), tuple(_spec(one, path) for one in outputs)
        )
        self._texts = [one.name for one in self.signature.outputs if one.dtype == BYTES]

    def infer(self, inputs: Arrays) -> dict[str, Array]:
        """Run the session; see `Servable`."""
        given = {name: _texts(one) if one.dtype == BYTES else one for name, one in inputs.items()}
        results = self._session.run(None, given)
        named = dict(zip((one.name for one in self.signature.outputs), results, strict=True))
        for name in self._texts:
            flat = [one.encode() if isinstance(one, str) else one for one in named[name].ravel()]
            named[name] = np.array(flat, object).reshape(named[name].shape)
        return named


def _texts(blobs: Array) -> Array:
    """ONNX has texts where the protocol has any bytes."""
    return np.array([one.decode() for one in blobs.ravel()], object).reshape(blobs.shape)


def _spec(one: Any, path: Path) -> TensorSpec:
    if one.type not in _DTYPES:
        raise UsageError(f"{path}: {one.name} is a {one.type}, which cannot be served")
    shape = tuple(extent if isinstance(extent, int) else -1 for extent in one.shape or ())
    return TensorSpec(one.name, _DTYPES[one.type], shape)
