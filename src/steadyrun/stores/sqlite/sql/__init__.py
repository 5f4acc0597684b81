"""SQL statements of the SQLite store, one module per subject."""
