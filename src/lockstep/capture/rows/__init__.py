"""The rows of a recorded step, with the lines of the script that they belong to."""
