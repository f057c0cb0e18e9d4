"""Register the verbs of this member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `weights`, `logprobs`, `experts` and `invariance`."""
    return [
        Verb(
            "weights",
            "Compare weights: a trainer's and its sampler's, or checkpoints.",
            Task.LOOK,
            _weights,
            7,
            ("sync", "checkpoint", "checkpoints", "state_dict"),
        ),
        Verb(
            "logprobs",
            "Compare probabilities of tokens: a trainer's and its sampler's.",
            Task.LOOK,
            _logprobs,
            8,
            ("probabilities", "kl", "rollout"),
        ),
        Verb(
            "experts",
            "Count tokens that two runs send to other experts.",
            Task.LOOK,
            _experts,
            9,
            ("moe", "router", "routing"),
        ),
        Verb(
            "invariance",
            "Test whether a model's rows depend on the rows beside them.",
            Task.PREPARE,
            _invariance,
            guesses=("batch-invariance", "batch", "invariant"),
        ),
    ]


def _weights() -> click.Command:
    from lockstep_sampling.weights.command import weights

    return weights


def _logprobs() -> click.Command:
    from lockstep_sampling.distributions.command import logprobs

    return logprobs


def _experts() -> click.Command:
    from lockstep_sampling.experts.command import experts

    return experts


def _invariance() -> click.Command:
    from lockstep_sampling.invariance.command import invariance

    return invariance
