"""One recorded call run again."""
