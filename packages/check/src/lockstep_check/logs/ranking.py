"""Order the messages of a log: the cause before its consequences.

The model has three parts, and knows no pair of messages. A message has a role (`known_messages.Role`): it says why
something failed, that it failed, that something else failed, or it repeats what was said. Messages of one role are in
order of time, where all have one, else as they stand. What stands behind the first cause is told with it as its reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep_check.logs.known_messages import Role, Severity
from lockstep_check.logs.scan import Findings, Found

_SEVERITIES = list(Severity)
_ROLES = list(Role)


@dataclass(frozen=True, slots=True)
class Told:
    """A message in the order in which it is told.

    follows_from: The message that explains it, for what is no cause itself.
    leads_to: The messages that it explains.
    """

    found: Found
    follows_from: Found | None = None
    leads_to: tuple[Found, ...] = ()


def in_order(findings: Findings) -> list[Told]:
    """Errors before warnings; causes before symptoms, consequences and echoes; each in order of time."""
    standings: dict[tuple[int, int], list[Found]] = {}
    general = {id(one) for one in findings.found.values() if _is_told_closer(one, findings)}
    for one in findings.found.values():
        role = Role.ECHO if id(one) in general else one.role
        standing = (_SEVERITIES.index(one.severity), _ROLES.index(role))
        standings.setdefault(standing, []).append(one)
    ordered = [one for standing in sorted(standings) for one in _by_time(standings[standing])]
    first = next((one for one in ordered if one.severity is Severity.ERROR), None)
    reasons = [_reason(one, first) for one in ordered]
    explained = tuple(one for one, reason in zip(ordered, reasons, strict=True) if reason)
    return [
        Told(one, reason, explained if one is first else ())
        for one, reason in zip(ordered, reasons, strict=True)
    ]


def _is_told_closer(one: Found, findings: Findings) -> bool:
    """Whether a message names only the class of a failure that another one of its log and rank tells of."""
    return one.message.general and any(
        each.severity is Severity.ERROR
        and not (each.message.fallback or each.message.general)
        and each.first.file == one.first.file
        and (each.rank == one.rank or None in (each.rank, one.rank))
        for each in findings.found.values()
    )


def _by_time(found: list[Found]) -> list[Found]:
    times = [one.time for one in found]
    if len({one.first.file for one in found}) == 1 or None in times:
        return found
    return sorted(found, key=lambda one: (one.time is not None, one.time))


def _reason(one: Found, first: Found | None) -> Found | None:
    """What an error follows from: the first error, unless it stands as near to a cause itself."""
    if first is None or one is first or one.severity is Severity.HARMLESS:
        return None
    return first if _ROLES.index(one.role) > _ROLES.index(first.role) else None
