"""Asynchronous synced writes with Linux's native AIO, called through ctypes.

A group commit on this path needs no thread: one context switch per write instead of nine, and half the CPU
(docs/design/storage-and-write-path.md#cost-of-an-append). The loop polls an eventfd for completions.

Only small O_DIRECT overwrites of whole sectors qualify. All other writes use the file's thread, as do all
writes on a system that refuses the calls (another platform, a seccomp filter, `fs.aio-max-nr`). Because
refusals are normal, `begin` returns them as error numbers.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from ponor_runtime.disk import Buffer

WRITE_BYTES_MAX: Final = 256 << 10
"""Larger writes cost more than the hop to a thread, and copying them would block the loop."""
WRITES_IN_FLIGHT_MAX: Final = 16

Ended: TypeAlias = Callable[[int], None]
"""Completion callback, called from the loop with the number of bytes written or a negative error number."""


class _CallNumbers(NamedTuple):
    setup: int
    destroy: int
    submit: int
    getevents: int


_CALLS: Final = {"x86_64": _CallNumbers(206, 207, 209, 208), "aarch64": _CallNumbers(0, 1, 2, 4)}
_PWRITE: Final = 1
_TELL_EVENTFD: Final = 1
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 8)
"""Python exposes the flag for reads only. For a write: fail instead of waiting for the file's lock or for a
free request."""
_FLAGS: Final = getattr(os, "RWF_DSYNC", 0) | _NOWAIT
_REQUEST: Final = struct.Struct("<QIIHhIQQqQII")
"""struct iocb: data, key, rw_flags, opcode, priority, descriptor, buffer, bytes, offset, reserved, flags,
eventfd.
"""
_EVENT: Final = struct.Struct("<QQqq")
"""struct io_event: data, request, result, second result."""
_EVENTFD_BYTES: Final = 8


class _Slot:
    """Memory of one write in flight. It must not move or change before the kernel completes the write."""

    __slots__ = ("address", "chunk", "ended", "pointer", "request")

    def __init__(self) -> None:
        memory = mmap.mmap(-1, WRITE_BYTES_MAX)  # page-aligned, as O_DIRECT requires
        self.chunk = memoryview(memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.request = ctypes.create_string_buffer(_REQUEST.size)
        self.pointer = ctypes.c_void_p(ctypes.addressof(self.request))
        self.ended: Ended | None = None


class KernelWrites:
    """One AIO context for one loop. Call all methods on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create the AIO context.

        Raises:
            OSError: the kernel or platform provides none.
        """
        numbers = _CALLS.get(platform.machine())
        # Without RWF_DSYNC the writes would complete before they are durable.
        if numbers is None or not hasattr(os, "eventfd") or not hasattr(os, "RWF_DSYNC"):
            raise OSError(
                errno.ENOSYS, f"{platform.system()} {platform.machine()} has no asynchronous writes"
            )
        self.loop: Final = loop
        self._numbers = numbers
        # PyDLL keeps the GIL: the calls do not block, whereas reacquiring the GIL may.
        library = ctypes.PyDLL(None, use_errno=True)
        self._submit = library["syscall"]
        self._getevents = library["syscall"]
        self._other = library["syscall"]
        address = ctypes.c_void_p
        self._submit.argtypes = [ctypes.c_long, ctypes.c_ulong, ctypes.c_long, address]
        self._getevents.argtypes = [
            ctypes.c_long,
            ctypes.c_ulong,
            ctypes.c_long,
            ctypes.c_long,
            address,
            address,
        ]
        self._submit.restype = self._getevents.restype = self._other.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._check(
            self._other(
                ctypes.c_long(numbers.setup),
                ctypes.c_uint(WRITES_IN_FLIGHT_MAX),
                ctypes.byref(self._context),
            )
        )
        self._events = ctypes.create_string_buffer(_EVENT.size * WRITES_IN_FLIGHT_MAX)
        self._no_time = ctypes.create_string_buffer(16)
        self._slots: list[_Slot] = []
        self._idle: list[int] = []
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._eventfd, self._collect)

    def begin(self, descriptor: int, position: int, buffers: Sequence[Buffer], ended: Ended) -> int:
        """Start to write all buffers consecutively, at most `WRITE_BYTES_MAX` bytes, and make them durable.

        Returns:
            0 if the write has started; the loop will call `ended`. Otherwise an error number (EAGAIN is
            temporary).
        """
        data = b"".join(buffers)
        if not self._idle:
            if len(self._slots) == WRITES_IN_FLIGHT_MAX:
                return errno.EAGAIN
            self._idle.append(len(self._slots))
            self._slots.append(_Slot())
        number = self._idle[-1]
        slot = self._slots[number]
        slot.chunk[: len(data)] = data
        _REQUEST.pack_into(
            slot.request,
            0,
            number,
            0,
            _FLAGS,
            _PWRITE,
            0,
            descriptor,
            slot.address,
            len(data),
            position,
            0,
            _TELL_EVENTFD,
            self._eventfd,
        )
        if self._submit(self._numbers.submit, self._context, 1, ctypes.byref(slot.pointer)) != 1:
            return ctypes.get_errno()
        slot.ended = ended
        self._idle.pop()
        return 0

    def close(self) -> None:
        """Destroy the context. Waits for writes in flight; their callbacks do not run."""
        self.loop.remove_reader(self._eventfd)
        self._other(ctypes.c_long(self._numbers.destroy), self._context)
        os.close(self._eventfd)

    def _collect(self) -> None:
        """Run the callbacks of completed writes."""
        try:
            os.read(self._eventfd, _EVENTFD_BYTES)
        except BlockingIOError:
            return
        count = self._getevents(
            self._numbers.getevents, self._context, 0, WRITES_IN_FLIGHT_MAX, self._events, self._no_time
        )
        self._check(count)
        for number, _, result, _ in _EVENT.iter_unpack(self._events.raw[: _EVENT.size * count]):
            slot = self._slots[number]
            ended, slot.ended = slot.ended, None
            assert ended is not None, "a write completed twice"
            self._idle.append(number)
            try:
                ended(result)
            except Exception as error:  # noqa: BLE001 - one failing callback must not stop the others
                self.loop.call_exception_handler(
                    {"message": "completion callback of a write raised", "exception": error}
                )

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"asynchronous write failed: {os.strerror(number)}")
