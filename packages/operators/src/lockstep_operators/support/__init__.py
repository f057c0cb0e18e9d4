"""Which operators a device has: lists out of torch itself, of vendors, and out of a user's own files."""
