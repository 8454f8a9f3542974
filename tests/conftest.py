"""Settings that all tests share."""

import signal

from hypothesis import settings

# A suite started in the background, or by nohup, ignores signals that its tests send to programs.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("same-every-time", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("same-every-time")
