"""The command-line options that every example shares, and what they switch."""

from __future__ import annotations

import argparse

import torch

FAULTS = ("none", "data", "init", "forward", "backward", "optimizer", "learning-rate")


def parser(description: str, *, batch_size: int) -> argparse.ArgumentParser:
    """Return a parser with the shared options; an example adds its own to it."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    result.add_argument("--steps", type=int, default=20, help="optimizer steps to take")
    result.add_argument("--batch-size", type=int, default=batch_size, help="samples per step")
    result.add_argument("--seed", type=int, default=0, help="seed of weights, data and dropout")
    result.add_argument("--threads", type=int, default=1, help="threads inside an operator")
    result.add_argument("--no-onednn", action="store_true", help="use no oneDNN kernel")
    result.add_argument("--fault", choices=FAULTS, default="none", help="what to get wrong")
    return result


def apply(options: argparse.Namespace) -> None:
    """Seed torch and choose the CPU kernels, as ``options`` asks for."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    if options.no_onednn:
        torch.backends.mkldnn.enabled = False
