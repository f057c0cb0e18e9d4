"""Running the original and the migrated files, and comparing them."""
