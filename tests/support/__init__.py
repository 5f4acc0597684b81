"""Shared code of the tests: harnesses, fakes and helpers."""
