"""The known messages, as rows of YAML files with the source of each."""
