"""A training so small that starting Python costs more; prints what recording must not change."""

import hashlib
import importlib.util
import pickle
import random
import sys

# As many libraries do before they import it: asking for torch is not yet importing it.
assert importlib.util.find_spec("torch") is not None

import numpy as np  # noqa: E402 - after the assertion, which is part of the test
import torch  # noqa: E402


def build(seed=0):
    if seed is not None:
        torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2)
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model):
    return model(torch.randn(5, 4)).square().mean()


def train_step(model, optimizer):
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(steps=3, seed=0):
    model, optimizer = build(seed)
    for _ in range(steps):
        print(train_step(model, optimizer).hex(), flush=True)
    print(fingerprint(model), flush=True)
    return model


def fingerprint(model):
    """Digest of the parameters and of the state of torch's random numbers."""
    state = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
    return hashlib.sha256(b"".join([*state, torch.get_rng_state().numpy().tobytes()])).hexdigest()


def surroundings():
    """All that a recorder could touch by mistake."""
    return {
        "argv": sys.argv,
        "path": sys.path,
        "start-up": getattr(sys.modules.get("sitecustomize"), "mark", None),
        "python random": hashlib.sha256(pickle.dumps(random.getstate())).hexdigest(),
        "numpy random": hashlib.sha256(pickle.dumps(np.random.get_state())).hexdigest(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "default dtype": str(torch.get_default_dtype()),
        "grad": torch.is_grad_enabled(),
        "module call": torch.nn.Module.__call__.__qualname__,
        "optimizer": torch.optim.Optimizer.__init__.__qualname__,
    }


if __name__ == "__main__":
    random.seed(1)
    np.random.seed(2)
    train()
    print(surroundings())
    print(sys.stdin.read())
    print("to stderr", file=sys.stderr)
