"""The model as a runtime of MLServer's own kind."""

import os

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from peer_servers import session


class Model(MLModel):
    """One session of ONNX Runtime."""

    async def load(self) -> bool:
        self.session = session(os.environ["MODEL"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        y = self.session.run(None, {"x": np.asarray(x, "float32")})[0]
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output(name="y", payload=y)]
        )
