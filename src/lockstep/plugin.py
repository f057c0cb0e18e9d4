"""Extension points: the hooks by which a plug-in adds to Lockstep, and facts about the installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.core.devices import Device, accelerators, devices
    from lockstep.core.members import FRAMEWORKS, MEMBERS, OWN_PACKAGES, lacking, own_folders
    from lockstep.core.version import DISTRIBUTION, VERSION
    from lockstep.devices.support_list import COMPOSED
    from lockstep.devices.support_list import Answer as SupportAnswer
    from lockstep.devices.support_list import Entry as SupportEntry
    from lockstep.devices.support_list import Standing as SupportStanding
    from lockstep.devices.support_list import SupportList as SupportedOperators
    from lockstep.hookspecs import (
        AskedModel,
        Elsewhere,
        Framework,
        LoadedModel,
        PathWord,
        Reader,
        ReportWriter,
        SupportList,
        Task,
        Use,
        Verb,
        hookimpl,
        hookspec,
    )
    from lockstep.plugins import manager, verbs
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "COMPOSED",
    "DISTRIBUTION",
    "FRAMEWORKS",
    "MEMBERS",
    "OWN_PACKAGES",
    "VERSION",
    "AskedModel",
    "Device",
    "Elsewhere",
    "Framework",
    "LoadedModel",
    "PathWord",
    "Reader",
    "ReportWriter",
    "SupportAnswer",
    "SupportEntry",
    "SupportList",
    "SupportStanding",
    "SupportedOperators",
    "Task",
    "Use",
    "Verb",
    "accelerators",
    "devices",
    "hookimpl",
    "hookspec",
    "lacking",
    "manager",
    "own_folders",
    "verbs",
]
