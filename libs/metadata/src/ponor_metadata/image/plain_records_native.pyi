from collections.abc import Callable
from typing import Any

class PlainRecords:
    def __init__(
        self, image: Any, rules: dict[int, tuple[str, Callable[..., None]]], record: Any
    ) -> None: ...
    def apply(self, image: Any, encoded: bytes) -> bool: ...

def contents_of(encoded: bytes) -> tuple[int, int, dict[int, int]] | None: ...
