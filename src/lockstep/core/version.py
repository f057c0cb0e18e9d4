"""Lockstep's own name and version."""

DISTRIBUTION = "lockstep-numerics"
"""Name under which it is installed; the package is `lockstep`."""

VERSION = "0.2.0"
"""That of this core; members have the same."""
