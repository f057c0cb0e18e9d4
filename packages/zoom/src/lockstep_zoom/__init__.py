"""`lockstep zoom`: the first bad step of two recorded trainings."""
