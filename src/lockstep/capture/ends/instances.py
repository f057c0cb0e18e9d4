"""Attributes of objects, read where Python keeps them: nothing of a class of the script's is called."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_MRO = type.__dict__["__mro__"]
_DICT = type.__dict__["__dict__"]
_FLAGS = type.__dict__["__flags__"]
_HEAP_TYPE = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`, `Include/object.h`: a class that a `class` statement has made."""


def attributes_of(value: object) -> Iterator[tuple[str, object]]:
    """Names and values of an object's own attributes: those of its dictionary, then its slots."""
    kind: type = type(value)
    for descriptor in _places_of(kind):
        if type(descriptor) is types.GetSetDescriptorType:
            found: Any = descriptor.__get__(value)
            if isinstance(found, dict):
                yield from ((name, one) for name, one in list(found.items()) if type(name) is str)
            continue
        try:
            yield descriptor.__name__, descriptor.__get__(value)
        except AttributeError:  # an empty slot
            continue


@lru_cache(maxsize=4096)
def _places_of(kind: type) -> tuple[Any, ...]:
    """Descriptors in C of the dictionary and the slots of a class's instances."""
    dictionary: list[Any] = []
    slots: list[Any] = []
    is_hidden = False
    for base in _MRO.__get__(kind):
        for name, value in _DICT.__get__(base).items():
            if name == "__dict__" and not (dictionary or is_hidden):
                is_hidden = type(value) is not types.GetSetDescriptorType
                dictionary = [] if is_hidden else [value]
            elif type(value) is types.MemberDescriptorType and _FLAGS.__get__(base) & _HEAP_TYPE:
                slots.append(value)
    return (*dictionary, *slots)


forget_classes = _places_of.cache_clear
"""Let go of the classes that were asked for."""


def bases_of(kind: type) -> tuple[type, ...]:
    """A class and those that it is made from, in the order in which names are looked up."""
    found: tuple[type, ...] = _MRO.__get__(kind)
    return found


def class_attributes(kind: type) -> Iterator[tuple[str, object]]:
    """Names and values that a class itself has, without those of Python."""
    for name, value in list(_DICT.__get__(kind).items()):
        if not (name.startswith("__") and name.endswith("__")):
            yield name, value


def module_of(kind: type) -> str:
    """The module that a class was made in, "" where it does not say."""
    for base in _MRO.__get__(kind):
        found = _DICT.__get__(base).get("__module__")
        if type(found) is str:
            return found
        if found is not None or _FLAGS.__get__(base) & _HEAP_TYPE:
            return ""
        return "builtins"
    return ""
