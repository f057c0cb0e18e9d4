"""Bytes to characters and back: nothing is lost, whatever a file is written in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_migrate.engine.text import UndecodableError, read_plain, read_python


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"x = 1\n", "utf-8"),
        ("x = 'é'\r\n".encode(), "utf-8"),
        ("# coding: latin-1\nx = 'é'\n".encode("latin-1"), "iso-8859-1"),
        ("#!/usr/bin/python\n# -*- coding: cp1252 -*-\nx = '€'\n".encode("cp1252"), "cp1252"),
        (b"\xef\xbb\xbfx = 1\n", "utf-8"),
        (b"", "utf-8"),
        (b"x = 1", "utf-8"),
        (b"x = 1\ry = 2\r", "utf-8"),
    ],
)
def test_python_source_comes_back_byte_for_byte(data: bytes, encoding: str) -> None:
    source = read_python(data)
    assert source.encoding == encoding
    assert source.encode(source.text) == data


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    source = read_python(b"\xef\xbb\xbfx = 1\n")
    assert source.text == "x = 1\n"
    assert source.encode("y = 2\n") == b"\xef\xbb\xbfy = 2\n"


@pytest.mark.parametrize(
    "data",
    [
        b"x = '\xe9'\n",  # Latin-1 that does not say so
        b"# coding: no-such-codec\n",
        b"x = 1\0\n",
        b"\xef\xbb\xbf# coding: latin-1\n",
    ],
)
def test_what_cannot_be_read_as_python_is_said_so(data: bytes) -> None:
    with pytest.raises(UndecodableError):
        read_python(data)


def test_a_new_character_that_the_encoding_lacks_is_said_so() -> None:
    source = read_python(b"# coding: latin-1\nx = 1\n")
    with pytest.raises(UndecodableError, match="iso-8859-1"):
        source.encode("x = '\u2022'")


@given(st.binary(max_size=200).filter(lambda data: b"\0" not in data))
def test_any_other_text_comes_back_byte_for_byte(data: bytes) -> None:
    source = read_plain(data)
    assert source.encode(source.text) == data


@pytest.mark.parametrize(
    ("text", "line_end"), [("a\nb\r\n", "\n"), ("a\r\nb\n", "\r\n"), ("a\rb", "\r"), ("a", "\n")]
)
def test_a_file_ends_its_lines_as_its_first_line_does(text: str, line_end: str) -> None:
    assert read_plain(text.encode()).line_end == line_end


@given(st.lists(st.sampled_from(["a", "é", "\n", "\r\n", "\r", "\x0c", "\u2028"]), max_size=30))
def test_positions_count_lines_as_python_does(characters: list[str]) -> None:
    text = "".join(characters)
    source = read_plain(text.encode())
    for offset in range(len(text)):
        line, column = source.position(offset)
        assert source.line_starts[line - 1] + column - 1 == offset
        ended = text[:offset].replace("\r\n", "\n").replace("\r", "\n").count("\n")
        if not text[:offset].endswith("\r") or text[offset] != "\n":
            assert line == ended + 1
