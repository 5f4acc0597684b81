"""Defines the version of steadyrun."""

__version__ = "0.1.0"
