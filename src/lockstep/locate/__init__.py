"""Where two runs part: the walk along the data flow, and what it names."""
