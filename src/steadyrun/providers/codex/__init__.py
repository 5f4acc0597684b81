"""The Codex provider."""
