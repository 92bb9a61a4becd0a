"""Files: `open_file` reads regular files only, `atomic_*` write whole ones or nothing."""
