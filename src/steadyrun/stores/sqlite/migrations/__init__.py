"""Numbered schema migrations. A released migration is never edited."""
