"""Holding every operator of one training against double precision, without a reference run."""
