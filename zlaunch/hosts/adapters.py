"""Read and write values of a type with pydantic."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Build what reads and writes a type when it is first needed; that takes tens of milliseconds."""
    return TypeAdapter(kind)
