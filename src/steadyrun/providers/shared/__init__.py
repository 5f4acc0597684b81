"""Code that several providers use."""
