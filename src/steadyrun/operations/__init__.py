"""The operations: everything that a user or a program can ask of steadyrun."""
