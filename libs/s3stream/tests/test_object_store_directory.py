"""The directory store on the real disk: conformance, durability, crashed processes, and disk errors."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path, PurePath

import pytest
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectStoreError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from ponor_runtime.system_disk import SystemDisk
from s3stream.stores import directory as directory_module
from s3stream.stores.directory import DirectoryObjectStore

from libs.s3stream.tests import object_store_conformance as conformance


class WatchedDisk(SystemDisk):
    """The real disk, with a record of calls that change names, and an injected failure."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.failing: dict[str, int] = {}

    def _step(self, name: str, path: PurePath) -> None:
        self.calls.append(f"{name} {path.name}")
        if name in self.failing:
            raise OSError(self.failing[name], "the disk says so", str(path))

    async def link(self, source: PurePath, target: PurePath) -> None:
        self._step("link", target)
        await super().link(source, target)

    async def remove(self, path: PurePath) -> None:
        self._step("remove", path)
        await super().remove(path)

    async def sync_directory(self, directory: PurePath) -> None:
        self._step("sync_directory", directory)
        await super().sync_directory(directory)


@pytest.fixture
async def disk() -> AsyncIterator[WatchedDisk]:
    watched = WatchedDisk()
    yield watched
    watched.close()


@pytest.fixture
async def store(disk: WatchedDisk, tmp_path: Path) -> AsyncIterator[DirectoryObjectStore]:
    opened = await DirectoryObjectStore.open(disk, tmp_path)
    yield opened
    await opened.close()


def temporary_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in (root / "uploads").rglob("*") if path.is_file())


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: conformance.Check, store: DirectoryObjectStore, tmp_path: Path) -> None:
    await check(store, "p")
    assert temporary_files(tmp_path) == []


class TestDurability:
    async def test_the_name_is_durable_before_a_put_returns(
        self, store: DirectoryObjectStore, disk: WatchedDisk
    ) -> None:
        disk.calls.clear()
        await store.put("84/ns/1", [b"x"])
        assert (
            disk.calls.index("link 1.object")
            < disk.calls.index("sync_directory ns")
            < disk.calls.index("remove 1.tmp")
        )

    async def test_a_put_that_finds_its_key_taken_syncs_the_directory(
        self, store: DirectoryObjectStore, disk: WatchedDisk
    ) -> None:
        """The other put may have crashed between its link and its sync."""
        await store.put("84/ns/1", [b"x"])
        disk.calls.clear()
        with pytest.raises(ObjectAlreadyExistsError):
            await store.put("84/ns/1", [b"x"])
        assert "sync_directory ns" in disk.calls

    async def test_a_deletion_is_durable(self, store: DirectoryObjectStore, disk: WatchedDisk) -> None:
        await store.put("84/ns/1", [b"x"])
        disk.calls.clear()
        await store.delete(["84/ns/1"])
        assert disk.calls == ["remove 1.object", "sync_directory ns"]

    async def test_the_next_process_finds_the_objects(
        self, store: DirectoryObjectStore, disk: WatchedDisk, tmp_path: Path
    ) -> None:
        await store.put("84/ns/1", [b"x"])
        await store.close()
        again = await DirectoryObjectStore.open(disk, tmp_path)
        assert await again.get("84/ns/1", 0, 1) == b"x"
        await again.close()


class TestTemporaryFiles:
    async def test_temporary_files_of_exited_processes_are_deleted(
        self, disk: WatchedDisk, tmp_path: Path
    ) -> None:
        for number in (0, 1):
            (tmp_path / "uploads" / str(number)).mkdir(parents=True)
            (tmp_path / "uploads" / str(number) / "7.tmp").write_bytes(b"half an obj")
        store = await DirectoryObjectStore.open(disk, tmp_path)
        assert temporary_files(tmp_path) == []
        await store.put("84/ns/1", [b"x"])
        await store.close()

    async def test_temporary_files_of_running_processes_are_kept(
        self, store: DirectoryObjectStore, disk: WatchedDisk, tmp_path: Path
    ) -> None:
        (tmp_path / "uploads" / "0" / "7.tmp").write_bytes(b"half an obj")
        second = await DirectoryObjectStore.open(disk, tmp_path)
        assert temporary_files(tmp_path) == ["uploads/0/7.tmp"]
        await second.put("84/ns/1", [b"x"])
        assert await store.get("84/ns/1", 0, 1) == b"x"
        await second.close()

    async def test_too_many_processes_are_refused_with_a_named_limit(
        self, store: DirectoryObjectStore, disk: WatchedDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory_module, "PROCESSES_MAX", 1)
        with pytest.raises(ObjectStoreRefusedError, match="1 processes have this object store open"):
            await DirectoryObjectStore.open(disk, tmp_path)

    async def test_a_failed_put_leaves_no_file(
        self, store: DirectoryObjectStore, disk: WatchedDisk, tmp_path: Path
    ) -> None:
        disk.failing["link"] = errno.ENOSPC
        with pytest.raises(ObjectStoreUnavailableError):
            await store.put("84/ns/1", [b"x"])
        assert temporary_files(tmp_path) == []
        disk.failing.clear()
        await store.put("84/ns/1", [b"x"])


class TestErrors:
    @pytest.mark.parametrize(
        ("number", "kind", "remedy"),
        [
            (errno.ENOSPC, ObjectStoreUnavailableError, "free disk space"),
            (errno.EACCES, ObjectStoreRefusedError, "check the directory"),
            (errno.EIO, ObjectStoreError, "check the disk"),
        ],
    )
    async def test_disk_errors_name_the_remedy(
        self,
        store: DirectoryObjectStore,
        disk: WatchedDisk,
        number: int,
        kind: type[ObjectStoreError],
        remedy: str,
    ) -> None:
        disk.failing["link"] = number
        with pytest.raises(kind, match=f"84/ns/1: .*the disk says so.*{remedy}") as caught:
            await store.put("84/ns/1", [b"x"])
        assert caught.value.retriable == (number == errno.ENOSPC)

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a b", "ä", "x" * 1000, "a.object/b", "a\n"]
    )
    async def test_invalid_keys_are_refused(self, store: DirectoryObjectStore, key: str) -> None:
        with pytest.raises(ValueError, match="object store key"):
            await store.put(key, [b"x"])
        with pytest.raises(ValueError, match="object store key"):
            await store.get(key, 0, 1)
        with pytest.raises(ValueError, match="object store key"):
            await store.delete([key])

    async def test_a_file_in_place_of_the_directory_is_named(self, disk: WatchedDisk, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(ObjectStoreError, match="file"):
            await DirectoryObjectStore.open(disk, tmp_path / "file")
