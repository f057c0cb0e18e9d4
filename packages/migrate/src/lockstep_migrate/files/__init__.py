"""Collect the files of a project, and read those that are no Python."""
