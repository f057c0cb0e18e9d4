"""Processes that compute parts of a comparison ahead of it: on this machine, or on a Ray cluster.

A part is a *piece*: some ranks of the two recordings, or one step of them. A worker opens the piece where it lies,
compares it, and sends back numbers, never tensors. The comparison itself runs as it does without an engine, and finds
these numbers instead of computing them. So it gives the same answer, letter for letter.
"""
