"""Files that are written whole or not at all, kept from other users, and free of secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.core.replacement import aside_of, replacing
    from lockstep.core.secrets import MASK, masked, masked_command, masked_setting
    from lockstep.report.output import check_output_file
    from lockstep.store.claim import Claim
    from lockstep.store.fetched_place import fetched
    from lockstep.store.limits import MOST_ELEMENTS, read_manifest, size_of, values_of
    from lockstep.store.permissions import make_private_directory, open_private, write_private
    from lockstep.store.urls import url_of
    from lockstep.store.written_place import written
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "MASK",
    "MOST_ELEMENTS",
    "Claim",
    "aside_of",
    "check_output_file",
    "fetched",
    "make_private_directory",
    "masked",
    "masked_command",
    "masked_setting",
    "open_private",
    "read_manifest",
    "replacing",
    "size_of",
    "url_of",
    "values_of",
    "write_private",
    "written",
]
