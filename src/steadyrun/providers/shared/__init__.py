"""Contains code that several providers use."""
