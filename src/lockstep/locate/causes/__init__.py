"""Why origins are origins: what two runs were set up with or did otherwise, and which origins have one cause."""
