"""Compare a served model with its reference: a share of requests runs through both."""
