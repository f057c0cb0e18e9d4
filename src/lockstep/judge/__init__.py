"""Decide between noise and fault: the question, the answer, and the judges by sizes and distances."""
