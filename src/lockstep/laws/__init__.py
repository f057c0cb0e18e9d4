"""The three laws: a verdict that follows from running both recorded programs again in double precision.

`applied` asks step by step, and knows no torch; `program` is what a step becomes, `step_laws` runs two of them.
"""
