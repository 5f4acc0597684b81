"""Drives provider processes: starts them under keepers, takes them over and replays them."""
