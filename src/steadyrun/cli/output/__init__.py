"""Terminal output: formats, tables, live display and questions."""
