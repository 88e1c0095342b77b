"""One module per command; a module is imported when its command is used, never for `--help` or completion."""
