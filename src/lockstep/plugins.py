"""The one plug-in manager."""
