"""What older tools did for those who call them: recordings are made, and the files of those tools written of them."""
