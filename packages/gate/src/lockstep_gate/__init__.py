"""Check numbers in CI: record a training and compare it with a golden recording."""
