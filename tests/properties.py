"""How often properties are tried whose examples cost little."""

from hypothesis import settings


def at_least(count: int) -> settings:
    """So many examples, or as many as the profile has: a long run is to try more."""
    return settings(max_examples=max(count, settings.default.max_examples), deadline=None)
