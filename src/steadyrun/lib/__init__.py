"""General-purpose code that knows nothing of agents: files, frames, clocks, tasks."""
