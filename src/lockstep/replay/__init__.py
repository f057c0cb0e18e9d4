"""Re-running recorded operators alone; nothing here loads torch before the first re-run."""
