"""Runs the scripted CLI: a child process that plays a script."""
