"""Carry out a plan: write files and reports."""
