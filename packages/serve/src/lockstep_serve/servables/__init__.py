"""Kinds of files that can be served, a file each."""
