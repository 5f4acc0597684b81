"""The command line: parses commands, runs them and prints their results."""
