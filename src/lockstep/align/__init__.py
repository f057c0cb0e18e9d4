"""Which call of one run is which of the other."""
