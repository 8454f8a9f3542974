from tests.checkpoint.conftest import copied, saved

__all__ = ["copied", "saved"]
