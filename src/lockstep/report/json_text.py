"""Values as strict JSON with a promise: a `schema` first, no NaN and no infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def enveloped(values: Mapping[str, Any], *, schema: int = 1) -> dict[str, Any]:
    """An answer with the version of its form, as every verb prints it.

    Parameters
    ----------
    schema
        Grows when a key gets another meaning or goes; not when one is added.
    """
    return {"schema": schema, **values}


def json_text(value: Any) -> str:
    """JSON text (RFC 8259), ASCII only; numbers that are not known or not finite are null.

    >>> json_text({"rel_l2": float("nan")})
    '{\\n "rel_l2": null\\n}'
    """
    return json.dumps(finite(value), indent=1, allow_nan=False)


def finite(value: Any) -> Any:
    """The same value with null where JSON has no number: NaN and the infinities, however deep."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
