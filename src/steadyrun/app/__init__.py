"""Builds the parts of the application from the configuration and connects them."""
