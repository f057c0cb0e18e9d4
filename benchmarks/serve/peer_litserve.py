"""The model as an API of LitServe's own kind, which its workers import."""

import litserve
import numpy as np
from peer_servers import session


class Api(litserve.LitAPI):
    """One session of ONNX Runtime."""

    def __init__(self, path, **how):
        super().__init__(**how)
        self.path = path

    def setup(self, device):
        self.session = session(self.path)

    def decode_request(self, request):
        return np.array(request["x"], "float32")

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, x):
        return self.session.run(None, {"x": x})[0]

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"y": output.tolist()}
