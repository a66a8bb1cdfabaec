from collections import deque
from typing import Any, Generic, TypeVar

from ponor_metadata.tables.schema import Schema, Table

_K = TypeVar("_K")
_R = TypeVar("_R")

class Change(Generic[_K, _R]):
    key: _K
    row: _R | None
    present: _R | None
    batch_index: int

class TouchedRows(Generic[_K, _R]):
    _base: Table[_K, _R]
    _schema: Schema[_K, _R]
    _touched: dict[_K, Change[_K, _R]]
    _index_keys: dict[str, dict[Any, dict[_K, int]]]
    _notes: deque[tuple[int, dict[Any, dict[_K, int]], Any, _K]]
    _unnoted: deque[Change[_K, _R]]
    _moved: list[tuple[Any, dict[Any, dict[_K, int]]]]

    def __init__(self, base: Table[_K, _R], overlay: Any) -> None: ...
    @property
    def schema(self) -> Schema[_K, _R]: ...
    @property
    def touched_rows(self) -> int: ...
    def get(self, key: _K) -> _R | None: ...
    def __contains__(self, key: object) -> bool: ...
    def put(self, row: _R) -> None: ...
    def delete(self, key: _K) -> None: ...
    def forget(self, index: int | None) -> None: ...
