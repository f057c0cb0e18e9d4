"""Decide between noise and fault: the question, the answer, and the judges by sizes and distances."""

__all__ = [
    "bounds", "calibration", "error_model", "fixed_rule", "gradient_model", "handed_on", "protocol",
    "repeated_runs", "stray_elements", "tolerances", "update_model",
]  # fmt: skip
"""Modules that other rooms import."""
