"""One run: options, timeouts, budget, permissions and retries."""
