"""Settings that all tests share."""

from hypothesis import settings

settings.register_profile("same-every-time", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("same-every-time")
