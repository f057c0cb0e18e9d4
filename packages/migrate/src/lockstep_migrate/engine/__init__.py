"""Python source and what rules may do with it; knows no framework."""
