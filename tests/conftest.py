"""What all tests share: hypothesis profiles and the marker of slow tests.

`--hypothesis-profile=fast` is for `make check`, `thorough` for `make test`. No profile has a
deadline: on a shared machine a slow example says nothing.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None)
settings.register_profile(
    "fast", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", deadline=None, max_examples=500, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes seconds; left out of `make check`")
