"""Drivers of provider processes: launch, keeper client, replay."""
