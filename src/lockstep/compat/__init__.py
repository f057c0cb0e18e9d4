"""The names of older tools: a script that was written for one runs with only its import changed.

What each does is in `lockstep.wings.interop.faces`; here stand names, signatures and defaults alone.
"""
