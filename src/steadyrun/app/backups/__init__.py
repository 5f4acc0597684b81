"""Backups of a home: one file that has the store and what else the home needs."""
