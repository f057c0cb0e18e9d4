"""Both runs' operators of one step as one graph: made of a comparison, laid out, and asked for piece by piece."""
