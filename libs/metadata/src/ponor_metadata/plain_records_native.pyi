from collections.abc import Callable
from typing import Any

from ponor_metadata.image import MetadataImage

class PlainRecords:
    def __init__(
        self, image: MetadataImage, rules: dict[int, tuple[str, Callable[..., None]]], record: Any
    ) -> None: ...
    def apply(self, image: MetadataImage, encoded: bytes) -> bool: ...

def contents_of(encoded: bytes) -> tuple[int, int, dict[int, int]] | None: ...
