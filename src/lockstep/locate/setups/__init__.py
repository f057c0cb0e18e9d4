"""What two runs were set up with: machines, modules, optimizers, dtypes, precision."""

__all__ = ["explains_origin", "model_setup", "setup_facts"]
"""Modules that other rooms import."""
