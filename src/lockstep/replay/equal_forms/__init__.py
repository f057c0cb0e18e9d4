"""What a device runs in place of an operator that it lacks, proven equal by running both."""
