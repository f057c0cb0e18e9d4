"""Stand in for older tools: make recordings, and write the files of those tools from them."""
