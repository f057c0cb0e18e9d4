"""Recording trainings of JAX: the program of an update is evaluated beside it, equation by equation."""
