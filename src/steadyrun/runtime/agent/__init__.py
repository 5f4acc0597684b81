"""The worker of one agent: its lane, its process and its event stream."""
