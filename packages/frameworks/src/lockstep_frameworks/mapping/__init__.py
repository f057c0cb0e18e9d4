"""Proposing which name of one framework's training is which of another's: `lockstep map`."""
