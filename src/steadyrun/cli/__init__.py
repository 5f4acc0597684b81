"""What a person types, and what it prints."""
