"""Contains the scripted CLI. It imports only itself and the standard library, as a foreign CLI."""
