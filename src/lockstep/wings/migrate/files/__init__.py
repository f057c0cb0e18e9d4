"""What is below a project: collecting it, and the readers of what is no Python."""
