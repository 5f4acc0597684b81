"""What all tests share: readable failures of the shipped suites, and reproducible properties."""

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("steadyrun.testing.store_conformance")
pytest.register_assert_rewrite("steadyrun.testing.provider_conformance")

# The same examples on every machine, so that a failing build fails on all of them; a busy machine
# may be slow. `--hypothesis-profile=explore` looks for new ones.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fast", parent=settings.get_profile("steady"), max_examples=20)
settings.register_profile("explore", parent=settings.get_profile("steady"), derandomize=False)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of asynchronous tests: the one that steadyrun uses."""
    return "asyncio"
