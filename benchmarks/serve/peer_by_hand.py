"""The model by hand: FastAPI and ONNX Runtime, no batches. `python peer_by_hand.py MODEL PORT`."""

import sys

import numpy as np
import uvicorn
from fastapi import FastAPI
from peer_servers import session
from pydantic import BaseModel

app, model = FastAPI(), session(sys.argv[1])


class Asked(BaseModel):
    x: list[float]


def run(asked: Asked) -> dict[str, list[float]]:
    return {"y": model.run(None, {"x": np.array([asked.x], "float32")})[0][0].tolist()}


@app.post("/threads")
def on_a_thread(asked: Asked) -> dict[str, list[float]]:
    return run(asked)


@app.post("/loop")
async def on_the_loop(asked: Asked) -> dict[str, list[float]]:
    return run(asked)


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
