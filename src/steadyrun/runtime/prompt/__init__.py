"""What a provider is told: prompts, briefings and recovery texts."""
