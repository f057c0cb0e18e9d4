"""Shell patterns on module paths and operator names, and the nearest names to one that matched nothing."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable

from lockstep.core.site import Phase, Site


def matches(pattern: str, module: str, op: str) -> bool:
    """Whether a pattern matches a module path, a path above it, an operator's full name, or that name's last part.

    >>> matches("h.0", "h.0.mlp", "torch.nn.functional.linear"), matches("linear", "head", "torch.nn.functional.linear")
    (True, True)
    """
    parts = module.split(".")
    paths = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    names = (*paths, op, op.rsplit(".", 1)[-1])
    return any(fnmatch.fnmatchcase(name, pattern) for name in names if name)


def site_matches(pattern: str, site: Site) -> bool:
    """Whether a pattern matches a site: its module path, a path above it, its operator, or all of it as it is printed.

    >>> act = Site("h.3.mlp.act", "torch.nn.functional.gelu", 0, Phase.FORWARD)
    >>> patterns = ("h.*.mlp", "gelu", "h.3.mlp.act / torch.nn.functional.gelu", "h.*.act / *.gelu")
    >>> [site_matches(pattern, act) for pattern in patterns]
    [True, True, True, True]
    """
    printed = _printed(site)
    if " / " in pattern and any(fnmatch.fnmatchcase(form, pattern) for form in printed):
        return True
    return matches(pattern, site.module, site.op) or pattern in printed


def _printed(site: Site) -> tuple[str, ...]:
    """A site as it is printed: whole, without its phase, without the number of the call.

    A backward is recorded with the call that it is the backward of.
    """
    whole = str(site)
    call = whole.rpartition(", ")[0]
    return whole, call, whole.rpartition(" #")[0], f"{call}, {Phase.BACKWARD.value}"


def nearest_names(pattern: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Names most like a pattern that matched nothing, best first.

    >>> names = ("body.0", "torch.Tensor.mul")
    >>> nearest_names("bdy.0", names), nearest_names("model", names)
    (['body.0'], [])
    """
    plain = pattern.strip("*").lower()
    known = sorted(set(names))
    inside = [name for name in known if plain and plain in name.lower()]
    spellings: dict[str, str] = {}
    for name in known:
        spellings.setdefault(name.lower(), name)
        spellings.setdefault(name.lower().rsplit(".", 1)[-1], name)
    close = difflib.get_close_matches(plain, spellings, n=count)
    return list(dict.fromkeys([*(spellings[form] for form in close), *inside]))[:count]
