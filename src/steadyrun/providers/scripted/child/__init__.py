"""The child of the scripted provider. It imports nothing of ours but itself: a foreign CLI."""
