"""Running a command under the recorder, and what is told of it while it runs."""
