"""How things look: tables, errors, progress in a terminal and off one."""
