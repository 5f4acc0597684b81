"""Reads the output of a process: bounded lines, positions and long lines."""
