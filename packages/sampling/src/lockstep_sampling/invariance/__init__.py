"""Whether a model gives a row the same whatever rows are beside it, and which operator is the first that does not."""
