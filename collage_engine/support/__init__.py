"""What a program needs whatever it is about: files, locks, text, durations, errors and reasons."""
