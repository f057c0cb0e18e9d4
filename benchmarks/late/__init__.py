"""Late faults and sound trainings: how often a fault that begins after some steps is named, on an emulated device."""
