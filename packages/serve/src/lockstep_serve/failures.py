"""The errors that answer a request, with their codes in HTTP and gRPC."""

from __future__ import annotations


class RequestError(Exception):
    """A request is not answered with outputs.

    `status` is the HTTP status, `code` the name of the gRPC status.
    """

    status = 400
    code = "INVALID_ARGUMENT"


class NotThereError(RequestError):
    """There is no such model, or version."""

    status = 404
    code = "NOT_FOUND"


class BusyError(RequestError):
    """As many instances wait as may."""

    status = 429
    code = "RESOURCE_EXHAUSTED"


class NotReadyError(RequestError):
    """The model is there, and not loaded."""

    status = 503
    code = "UNAVAILABLE"


class ModelFailedError(RequestError):
    """The model raised, or gave what its signature does not have."""

    status = 500
    code = "INTERNAL"


class RunnerDiedError(ModelFailedError):
    """The process that ran the model died; the request may be asked once more."""


class TooSlowError(RequestError):
    """The model did not answer within its time."""

    status = 504
    code = "DEADLINE_EXCEEDED"
