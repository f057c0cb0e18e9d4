"""What becomes of a plan: files, reports, undoing."""
