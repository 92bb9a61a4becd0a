"""Output to the terminal: text, tables, progress; interrupts and failures."""
