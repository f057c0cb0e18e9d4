"""One peer serving the model: `python peer_servers.py litserve MODEL PORT`, by the Python of its own environment."""

import sys
import time

import numpy as np
import onnxruntime

MOST = 32


def session(path):
    """The model as every server of the benchmark runs it: on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def litserve(path, port):
    """LitServe, batches of what waits."""
    import litserve
    from peer_litserve import Api

    api = Api(path, max_batch_size=MOST, batch_timeout=0.0)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


def ray(path, port):
    """Ray Serve, one replica, batches of what waits."""
    import ray as cluster
    from ray import serve

    @serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=100)
    class Model:
        def __init__(self):
            self.session = session(path)

        @serve.batch(max_batch_size=MOST, batch_wait_timeout_s=0.0)
        async def run(self, rows):
            return list(self.session.run(None, {"x": np.stack(rows)})[0])

        async def __call__(self, request):
            asked = await request.json()
            found = await self.run(np.array(asked["x"], "float32"))
            return {"y": found.tolist()}

    cluster.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Model.bind(), route_prefix="/predict")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    {"litserve": litserve, "ray": ray}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
