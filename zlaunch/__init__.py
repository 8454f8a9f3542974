"""zlaunch makes ZeRO runs work the first time."""

__version__ = "0.1.0"
