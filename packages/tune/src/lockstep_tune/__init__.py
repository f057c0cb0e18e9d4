"""Where a training spends its time, which switch changes its numbers, and which settings are fast or best."""
