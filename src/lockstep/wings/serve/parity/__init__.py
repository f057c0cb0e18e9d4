"""Whether a served model still computes what its reference does: a share of requests is run through both."""
