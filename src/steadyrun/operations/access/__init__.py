"""Who calls an operation, and whether that caller may."""
