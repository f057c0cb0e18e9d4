"""Whether the instances of a batch know of each other, proved from a model's graph, node by node."""
