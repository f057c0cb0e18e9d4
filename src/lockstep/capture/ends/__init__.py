"""What a training leaves behind: its losses after the recorded steps, and its last states."""
