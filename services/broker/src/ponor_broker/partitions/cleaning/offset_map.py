"""The cleaner's key map: the newest offset of each key, in a fixed number of bytes.

A hash table in byte arrays. A key is represented by its 16-byte digest, as in Kafka's
`SkimpyOffsetMap`; digest collisions are neglected. An entry takes 24 bytes regardless of the key's
length; a Python dictionary would take eight times that.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final

from ponor_kafka.primitives import Buffer

DIGEST_BYTES: Final = 16
ENTRY_BYTES: Final = DIGEST_BYTES + 8
LOAD_PERCENT_MAX: Final = 80
"""Above this load, the search for an absent key takes too many steps."""
LOAD_PERCENT_PLANNED: Final = 70
"""Load for which the map is sized: keys are not distributed evenly over the pages."""
PAGE_SLOTS: Final = 1 << 15
"""Slots of one allocation: clearing it takes a tenth of a millisecond, so that a large map does not
block the event loop."""
_EMPTY: Final = bytes(DIGEST_BYTES)
_OFFSET: Final = Struct(">q")
_WORDS: Final = Struct(">QQ")


class OffsetMap:
    """A map of at most `bytes_max`, sized for at most `keys_max` keys."""

    def __init__(self, bytes_max: int, keys_max: int) -> None:
        slots_max = max(bytes_max // ENTRY_BYTES, 2)
        slots_wanted = keys_max * 100 // LOAD_PERCENT_PLANNED + 2
        self._pages_max = max(min(slots_max // PAGE_SLOTS, -(-slots_wanted // PAGE_SLOTS)), 1)
        self._page_slots = min(slots_max, slots_wanted, PAGE_SLOTS)
        self._keys_per_page_max = max(self._page_slots * LOAD_PERCENT_MAX // 100, 1)
        self._pages: list[bytearray | None] = [None] * self._pages_max
        self._keys_of_page = [0] * self._pages_max
        self.keys = 0
        self.size_bytes = 0
        """Memory allocated so far."""

    def put(self, key: Buffer, offset: int) -> bool:
        """Store a record's offset; the largest offset of a key counts. Return False if there is no room."""
        digest = digest_of(key)
        number, page, at = self._find(digest)
        if page[at : at + DIGEST_BYTES] != digest:
            if self._keys_of_page[number] >= self._keys_per_page_max:
                return False
            page[at : at + DIGEST_BYTES] = digest
            self._keys_of_page[number] += 1
            self.keys += 1
        elif _OFFSET.unpack_from(page, at + DIGEST_BYTES)[0] >= offset:
            return True
        _OFFSET.pack_into(page, at + DIGEST_BYTES, offset)
        return True

    def newest(self, key: Buffer) -> int:
        """Return the largest offset of a key, −1 if absent."""
        digest = digest_of(key)
        _, page, at = self._find(digest)
        if page[at : at + DIGEST_BYTES] != digest:
            return -1
        offset: int = _OFFSET.unpack_from(page, at + DIGEST_BYTES)[0]
        return offset

    def _find(self, digest: bytes) -> tuple[int, bytearray, int]:
        """Return page number, page and position of the digest's entry, or of the free slot for it."""
        high, low = _WORDS.unpack(digest)
        number = high % self._pages_max
        page = self._pages[number]
        if page is None:
            page = self._pages[number] = bytearray(self._page_slots * ENTRY_BYTES)
            self.size_bytes += len(page)
        end = len(page)
        at = low % self._page_slots * ENTRY_BYTES
        while True:
            found = page[at : at + DIGEST_BYTES]
            if found in (digest, _EMPTY):  # at least one slot is always free
                return number, page, at
            at += ENTRY_BYTES
            if at == end:
                at = 0


def digest_of(key: Buffer) -> bytes:
    """Return a key's digest; never the value that marks an empty slot."""
    digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
    return digest if digest != _EMPTY else b"\xff" * DIGEST_BYTES
