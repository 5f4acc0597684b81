"""Facts about processes, from the kernel."""
