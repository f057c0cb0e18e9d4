"""A training that another process follows: the step it is to end after, and its losses until one differs."""
