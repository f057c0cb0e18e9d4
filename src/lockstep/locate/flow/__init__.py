"""The walk along the data flow of a step, which judges each pair and names origins."""

__all__ = ["ledger", "noise", "setup_walk", "updates", "walk"]
"""Modules that other rooms import."""
