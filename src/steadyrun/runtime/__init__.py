"""What makes a provider a lasting teammate: the path from a claim to a settled item."""
