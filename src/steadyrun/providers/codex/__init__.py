"""Runs Codex, the CLI of OpenAI."""
