"""The daemon's API: server, client and error format."""
