"""Migrating training scripts from CUDA to another device: every site rewritten or listed.

Sources are read, never run, and torch is not imported. A *mention* is one place in a file that names the old device; a
*plan* holds all mentions of all files, each with its edits or with the reason why it has none. Reports, previews,
output folders and undoing are made from the plan.
"""
