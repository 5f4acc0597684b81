"""Runs Claude Code, the CLI of Anthropic."""
