"""What a terminal shows, and how it is treated: text, tables, progress, interrupts, failures."""
