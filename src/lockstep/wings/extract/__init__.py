"""Taking one site's tensors out of a recording, into a file that other tools read."""
