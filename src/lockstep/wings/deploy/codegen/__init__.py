"""C99 of a model, with all of its memory static, built and held against the runtime."""
