"""Contains fakes and conformance suites for tests of steadyrun, of stores and of providers."""
