"""Contains one Dialect for each supported CLI."""
