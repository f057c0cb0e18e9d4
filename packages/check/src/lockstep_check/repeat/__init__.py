"""Whether a training is repeatable: run several times, and the first tensor that is another one."""
