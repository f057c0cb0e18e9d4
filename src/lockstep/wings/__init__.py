"""Verbs around the main job. A wing registers its own verbs and imports no other wing."""
