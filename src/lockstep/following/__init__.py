"""How a training and the process that follows it talk: small files in its recording, and in a folder of this user."""
