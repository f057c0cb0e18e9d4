"""What a wrong result is instead: hypotheses, each computed and held against what was recorded."""
