"""The names of older tools: a script that was written for one runs with only its import changed.

What each does is in `faces`; beside it stand names, signatures and defaults alone.
"""
