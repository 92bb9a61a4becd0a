"""Speech: files of sound, features, windows, texts with times."""
