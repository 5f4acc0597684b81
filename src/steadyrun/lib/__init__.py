"""Contains general-purpose code that does not depend on agents: files, frames, clocks, tasks."""
