"""Serving trained models by the Open Inference Protocol."""
