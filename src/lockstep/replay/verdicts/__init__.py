"""What running a call again says: noise or fault, and which run is wrong."""
