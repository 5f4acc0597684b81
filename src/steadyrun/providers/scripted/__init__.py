"""The scripted provider: a child process that plays a script."""
