"""Python servables that say where they ran, wait to be let go, fail and hang."""

from __future__ import annotations

from pathlib import Path

TEXT = """
import os, threading
import numpy as np
from lockstep_serve.servable import Signature, TensorSpec

FLOATS, WHOLE = np.dtype("float32"), np.dtype("int64")

class Held:
    platform = "python"
    signature = Signature(
        (TensorSpec("x", FLOATS, (-1, 1)),),
        (TensorSpec("y", FLOATS, (-1, 1)), TensorSpec("by", WHOLE, (-1,)), TensorSpec("ran", WHOLE, (-1,))),
        batches=True,
    )

    def __init__(self, folder):
        self.folder = folder

    def infer(self, inputs):
        x = inputs["x"]
        if 1 in x:
            raise ValueError("a one")
        if 2 in x:
            os._exit(7)
        if 3 in x:
            threading.Event().wait()
        import ray
        if (self.folder / "hold").exists():
            (self.folder / f"at_{os.getpid()}_{ray.get_runtime_context().get_node_id()}").touch()
            while (self.folder / "hold").exists():
                threading.Event().wait(0.02)
        return {"y": x * 2, "by": np.full(len(x), os.getpid()), "ran": np.full(len(x), len(x))}

def load(version_dir):
    return Held(HELD_AT)
"""


def held(folder: Path, name: str, beside: Path) -> Path:
    """A model that is let run while `beside / "hold"` is not there, and writes there which replicas are at work."""
    file = folder / name / "1" / "servable.py"
    file.parent.mkdir(parents=True)
    beside.mkdir(parents=True)
    here = f"import pathlib\nHELD_AT = pathlib.Path({str(beside)!r})\n"
    file.write_text(here + TEXT)
    return beside


def at_work(beside: Path) -> dict[int, str]:
    """The processes that hold a run, each with its node."""
    found = [one.name.split("_") for one in beside.glob("at_*")]
    return {int(process): node for _, process, node in found}
