"""Numbered steps of the schema, one folder an engine. Released steps are never edited."""
