"""A call from the tap that sees it begin to the rows that tell of it."""
