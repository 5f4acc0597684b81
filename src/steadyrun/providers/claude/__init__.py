"""The Claude Code provider."""
