"""A stand-alone test of one operator, which a user can send to the maker of a device."""
