"""HTML out of tags and text: `tag("p", "a < b")`. Text is escaped here and nowhere else, so none can be forgotten."""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.report.page.escape import LONGEST, html_text

_EMPTY = frozenset({"meta"})
"""Tags that are never closed."""


class Html(str):
    """Text that is HTML already: only `tag` and its like make it."""

    __slots__ = ()


Child = str | Html | None | Iterable["Child"]


def tag(
    name: str, /, *children: Child, longest: int | None = LONGEST, **attributes: object
) -> Html:
    """One element.

    Parameters
    ----------
    name
        Of the element.
    children
        Text, elements, or sequences of them; None is left out.
    longest
        How long text may be before its middle is cut; None for as long as it is.
    attributes
        `class_` is class, other underscores are hyphens; True is an attribute without value, None and False none.
    """
    opened = f"<{name}{''.join(_attribute(*one) for one in attributes.items())}>"
    if name in _EMPTY:
        return Html(opened)
    return Html(f"{opened}{together(*children, longest=longest)}</{name}>")


def together(*children: Child, longest: int | None = LONGEST) -> Html:
    """Return elements and text one after the other."""
    return Html("".join(_markup(one, longest) for one in children))


def _markup(child: Child, longest: int | None) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html_text(child, longest)
    return "".join(_markup(one, longest) for one in child)


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{html_text(str(value), None)}"'
