"""Which experts tokens go to, in two recordings of a mixture of experts."""
