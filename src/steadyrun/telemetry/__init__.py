"""OpenTelemetry spans of runs and tools."""
