"""Smaller inputs on which a call still fails."""
