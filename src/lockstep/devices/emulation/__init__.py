"""A CPU that computes as other hardware would."""
