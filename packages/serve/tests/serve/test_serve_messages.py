"""The table of protobuf's messages against a client's own copy of the protocol."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lockstep_serve.protocol import messages

theirs = pytest.importorskip(
    "tritonclient.grpc.service_pb2", reason="needs tritonclient, of the dev extra"
)


def told(descriptor: Any) -> dict[str, tuple[int, int, bool]]:
    """Number, type and whether repeated of each field, those of nested messages too."""
    fields = {
        f"{descriptor.full_name}.{one.name}": (one.number, one.type, one.is_repeated)
        for one in descriptor.fields
    }
    for nested in descriptor.nested_types:
        fields.update(told(nested))
    return fields


@pytest.mark.parametrize("method", messages.METHODS)
@pytest.mark.parametrize("side", ["Request", "Response"])
def test_messages_have_the_numbers_of_the_protocol(method: str, side: str) -> None:
    # Given a message of ours, and a client's message of that name
    own = messages.message_class(f"{method}{side}")
    client = getattr(theirs, f"{method}{side}")
    # Then each field that we know has its number and type there, but for one of the protocol that Triton lacks
    missing = told(own.DESCRIPTOR).keys() - told(client.DESCRIPTOR).keys()
    assert {one for one in missing if "ropert" not in one} == set()
    both = told(own.DESCRIPTOR).keys() - missing
    assert {told(own.DESCRIPTOR)[one] == told(client.DESCRIPTOR)[one] for one in both} <= {True}
    # And what is pickled for another process comes back
    assert pickle.loads(pickle.dumps(own())) == own()
