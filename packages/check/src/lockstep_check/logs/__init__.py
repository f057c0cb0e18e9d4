"""Logs of trainings: known messages in them, with cause and cure."""
