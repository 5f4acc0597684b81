"""Builds what a provider gets: turns, system prompts, briefings and recovery texts."""
