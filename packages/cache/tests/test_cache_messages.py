"""Messages come back as they were sent, however they are cut; anything else is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_cache import messages as m

_numbers = st.integers(0, (1 << 62) - 1)
_texts = st.text(max_size=20)
_any_message = st.one_of(
    st.builds(m.Hello, _numbers),
    st.builds(m.Attach, _texts, _texts, st.dictionaries(_texts, _texts), _texts, _numbers),
    st.builds(m.Place, _texts, _texts, st.lists(st.lists(_numbers, max_size=3), max_size=5)),
    st.builds(m.Written, _texts, _texts, st.lists(_numbers)),
    st.builds(m.Refused, _texts, st.dictionaries(_texts, _texts)),
    st.just(m.Stat()),
)


@given(st.lists(_any_message, max_size=4), st.integers(1, 50))
def test_messages_come_whole_however_they_are_cut(sent: list[m.Message], piece: int) -> None:
    data = b"".join(map(m.encode, sent))
    decoder = m.Decoder()
    came = [one for at in range(0, len(data), piece) for one in decoder.feed(data[at : at + piece])]
    assert came == sent


@given(st.binary(max_size=64))
def test_garbage_is_refused_or_waited_for(garbage: bytes) -> None:
    try:
        m.Decoder().feed(len(garbage).to_bytes(4, "big") + garbage)
    except m.MessageError:
        return
    pytest.fail("garbage was taken for a message")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "Nothing"}, "no known kind"),
        ({"kind": "Hello"}, "its fields are pid"),
        ({"kind": "Hello", "pid": -1}, "its pid"),
        ({"kind": "Hello", "pid": True}, "its pid"),
        ({"kind": "Hello", "pid": 1, "more": 2}, "its fields"),
        ({"kind": "Attach", "session": "a", "checksum": "", "description": {"a": 1}}, "description"),
        ({"kind": "Place", "session": "a", "variant": "", "wanted": [["x"]]}, "its wanted"),
        ([], "no known kind"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(fields: object, words: str) -> None:
    text = json.dumps(fields).encode()
    with pytest.raises(m.MessageError, match=words):
        m.Decoder().feed(len(text).to_bytes(4, "big") + text)


def test_a_message_that_is_too_long_is_refused_before_it_comes() -> None:
    with pytest.raises(m.MessageError, match="longer"):
        m.Decoder().feed((m.MOST_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(m.MessageError, match="longer"):
        m.encode(m.Stats("x" * m.MOST_BYTES))
