"""The command line: one file a verb of the main job; others are found as plug-ins."""
