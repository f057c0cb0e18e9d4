"""Command lines of Lockstep that a report or a message gives you to type; no other package below the CLI writes any."""
