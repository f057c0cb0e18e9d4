"""Recording trainings of frameworks other than PyTorch."""
