"""Lockstep's own version."""

VERSION = "0.1.0"
