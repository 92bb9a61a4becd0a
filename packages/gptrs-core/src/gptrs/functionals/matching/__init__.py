"""Find calls of functionals in programs: `patterns` derived by capturing example calls."""
