"""The CLIs we can speak with, and what drives them."""
