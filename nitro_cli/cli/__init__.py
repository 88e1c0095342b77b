"""The command line: one module per command in `commands/`, how things look in `render/`."""
