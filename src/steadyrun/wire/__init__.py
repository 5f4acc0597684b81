"""How bytes come and go: files watched, later pipes, frames and calls."""
