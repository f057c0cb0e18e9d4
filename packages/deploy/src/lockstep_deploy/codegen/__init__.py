"""Generate C99 from a model, with all memory static, build it and compare it with the runtime."""
