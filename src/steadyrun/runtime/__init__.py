"""Runs the items of agents: from the claim of an item to its settlement."""
