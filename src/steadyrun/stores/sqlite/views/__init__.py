"""Reads that serve one screen, one step of the runtime, or a check of the whole store."""
