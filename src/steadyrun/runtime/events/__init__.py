"""Publication of events to subscribers."""
