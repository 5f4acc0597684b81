"""The SQLite connection: writer thread, locks, schema and error translation."""
