"""The in-memory store: the reference implementation of the contract."""
