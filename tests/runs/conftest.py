from tests.checkpoint.conftest import saved

__all__ = ["saved"]
