"""Trainings on other machines, over SSH."""
