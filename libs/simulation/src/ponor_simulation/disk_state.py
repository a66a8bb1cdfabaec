"""Contents of a simulated disk: bytes and names, as processes see them and as a power loss leaves them."""

from __future__ import annotations

import random
from pathlib import PurePath

from ponor_runtime.disk import SECTOR_BYTES


class FileState:
    """The bytes of one file: `seen` by reads, and `durable` after a power loss."""

    __slots__ = ("dirty", "durable", "seen", "written_at_ms")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        self.dirty: list[tuple[int, int]] = []
        """Ranges written since the last sync, in order."""
        self.written_at_ms = 0

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Change what reads return."""
        end = position + len(data)
        if end > len(self.seen):
            self.seen.extend(bytes(end - len(self.seen)))
        self.seen[position:end] = data
        if data:
            self.dirty.append((position, end))

    def persist(self, pieces: list[tuple[int, bytes]]) -> None:
        """Make durable the bytes that the dirty ranges held when the sync began."""
        for start, content in pieces:
            self._keep(start, content)

    def lose_power(self, chance: random.Random, kept: float) -> bool:
        """Keep every unsynced sector with probability `kept`. Return whether the file lost bytes."""
        for start, end in self.dirty:
            for sector in range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
                if chance.random() < kept:
                    low = max(start, sector * SECTOR_BYTES)
                    self._keep(low, bytes(self.seen[low : min(end, (sector + 1) * SECTOR_BYTES)]))
        self.dirty = []
        is_torn = self.seen != self.durable
        self.seen = bytearray(self.durable)
        return is_torn

    def _keep(self, start: int, content: bytes) -> None:
        end = start + len(content)
        if end > len(self.durable):
            self.durable.extend(bytes(end - len(self.durable)))
        self.durable[start:end] = content


class DirectoryState:
    """The names in one directory, and the changes that a power loss may undo."""

    __slots__ = ("durable", "names", "unsynced")

    def __init__(self) -> None:
        self.names: dict[str, FileState] = {}
        self.durable: dict[str, FileState] = {}
        self.unsynced: list[dict[str, FileState | None]] = []
        """Atomic changes in order. Each maps names to files; None removes the name."""

    def change(self, change: dict[str, FileState | None]) -> None:
        """Make a change visible."""
        _apply(self.names, change)
        self.unsynced.append(change)

    def persist(self, count: int) -> None:
        """Make the first `count` changes durable; they were waiting when the sync began."""
        for change in self.unsynced[:count]:
            _apply(self.durable, change)
        del self.unsynced[:count]

    def lose_power(self, chance: random.Random, kept: float) -> None:
        """Keep a random prefix of the unsynced changes: file systems keep the order of changes in a
        directory.
        """
        survivors = 0
        while survivors < len(self.unsynced) and chance.random() < kept:
            survivors += 1
        self.persist(survivors)
        self.unsynced = []
        self.names = dict(self.durable)


class DiskState:
    """All directories of one machine. It exists longer than the processes that use it."""

    def __init__(self) -> None:
        self.directories: dict[PurePath, DirectoryState] = {PurePath("/"): DirectoryState()}
        self._below: dict[PurePath, list[str]] = {}
        """Subdirectories by directory; directories are never removed."""

    def directory(self, path: PurePath) -> DirectoryState:
        """A directory.

        Raises:
            FileNotFoundError: it does not exist.
        """
        state = self.directories.get(path)
        if state is None:
            raise FileNotFoundError(2, "no such directory", str(path))
        return state

    def file(self, path: PurePath) -> FileState:
        """A file.

        Raises:
            FileNotFoundError: it does not exist.
        """
        state = self.directory(path.parent).names.get(path.name)
        if state is None:
            raise FileNotFoundError(2, "no such file", str(path))
        return state

    def make_directories(self, path: PurePath) -> None:
        """Make a directory and its parents, durably."""
        for part in [*reversed(path.parents), path]:
            if part not in self.directories:
                if part.name in self.directory(part.parent).names:
                    raise NotADirectoryError(20, "is a file", str(part))
                self.directories[part] = DirectoryState()
                self._below.setdefault(part.parent, []).append(part.name)

    def names(self, path: PurePath) -> list[str]:
        """Files and directories in a directory, sorted."""
        return sorted([*self.directory(path).names, *self._below.get(path, ())])

    def used_bytes(self) -> int:
        """Bytes of all files that have a name."""
        files = {
            id(file): file for directory in self.directories.values() for file in directory.names.values()
        }
        return sum(len(file.seen) for file in files.values())

    def lose_power(self, chance: random.Random, kept: float) -> int:
        """Drop a random part of the unsynced sectors and names. Return how many files lost bytes."""
        files: dict[int, FileState] = {}
        for directory in self.directories.values():
            for file in [*directory.names.values(), *directory.durable.values()]:
                files.setdefault(id(file), file)
            for change in directory.unsynced:
                files.update({id(file): file for file in change.values() if file is not None})
        torn_files = sum(file.lose_power(chance, kept) for file in files.values())
        for directory in self.directories.values():
            directory.lose_power(chance, kept)
        return torn_files


def _apply(names: dict[str, FileState], change: dict[str, FileState | None]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file
