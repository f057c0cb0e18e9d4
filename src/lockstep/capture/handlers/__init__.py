"""What hears of the calls that the taps see, and records them."""
