"""The rules for Python code that uses torch, one topic a file, and the tables of names that they read.

Each topic has one function `find_...(unit)` that claims the mentions it understands; `leftovers` comes last and claims
whatever names the old device and was claimed by nobody.
"""
