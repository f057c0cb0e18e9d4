"""The vocabulary of everything else. No torch."""
