"""The three laws: a verdict that follows from running both recorded programs again in double precision."""
