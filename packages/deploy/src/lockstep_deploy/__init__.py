"""Trained networks exported, run, quantized and made C, the numbers proven at each step; what answers rest on."""
