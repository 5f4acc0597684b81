"""The data of the runtime, and the pure rules about it."""
