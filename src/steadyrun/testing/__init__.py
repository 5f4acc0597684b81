"""What tests of the runtime and of new engines need: references, fakes and conformance suites."""
