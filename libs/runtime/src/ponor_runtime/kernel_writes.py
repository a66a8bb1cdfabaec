"""Synced writes that the kernel carries out while the loop goes on: Linux's native asynchronous I/O, called through ctypes.

What lives here: the four calls, the memory they write from, and the way of a result back to the loop, which is an eventfd that it polls like a
socket. A group commit that goes this way needs no thread, and so none of the hand-overs of Python's lock that two threads on one core pay with
context switches: one per write instead of nine, and half the CPU (docs/design/storage-and-write-path.md#cost-of-an-append).

Only for writes that need nothing besides: direct ones of whole sectors, in place, small. For all others, and wherever the calls are refused
(another system, a container that forbids them, `fs.aio-max-nr`), a file has its thread; so every refusal here is a plain error number.
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
"""Beyond it the bytes cost more than the hop to a thread does, and copying them would hold up the loop."""
WRITES_IN_FLIGHT_MAX: Final = 16

Ended: TypeAlias = Callable[[int], None]
"""Called from the loop with the number of bytes written, or a negative error number."""


class _CallNumbers(NamedTuple):
    setup: int
    destroy: int
    submit: int
    getevents: int


_CALLS: Final = {"x86_64": _CallNumbers(206, 207, 209, 208), "aarch64": _CallNumbers(0, 1, 2, 4)}
_PWRITE: Final = 1
_TELL_EVENTFD: Final = 1
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 8)
"""Python names it for reads only; of a write it says: refuse instead of waiting for another user of the file or for a free request."""
_FLAGS: Final = getattr(os, "RWF_DSYNC", 0) | _NOWAIT
_REQUEST: Final = struct.Struct("<QIIHhIQQqQII")
"""struct iocb: data, key, rw_flags, opcode, priority, descriptor, buffer, bytes, offset, reserved, flags, eventfd."""
_EVENT: Final = struct.Struct("<QQqq")
"""struct io_event: data, request, result, second result."""
_EVENTFD_BYTES: Final = 8


class _Slot:
    """Memory of one write in flight: what the kernel reads must stay where it is, and as it is, until the end."""

    __slots__ = ("address", "chunk", "ended", "pointer", "request")

    def __init__(self) -> None:
        memory = mmap.mmap(-1, WRITE_BYTES_MAX)  # of the kernel, thus aligned as direct writes want it
        self.chunk = memoryview(memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.request = ctypes.create_string_buffer(_REQUEST.size)
        self.pointer = ctypes.c_void_p(ctypes.addressof(self.request))
        self.ended: Ended | None = None


class KernelWrites:
    """One context of the kernel, for one loop. All methods run on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the kernel for a context.

        Raises:
            OSError: it has none for us, whatever the reason.
        """
        numbers = _CALLS.get(platform.machine())
        # Without the flag the writes would end before they are durable, and nobody would notice.
        if numbers is None or not hasattr(os, "eventfd") or not hasattr(os, "RWF_DSYNC"):
            raise OSError(errno.ENOSYS, f"no asynchronous writes on {platform.system()} {platform.machine()}")
        self.loop: Final = loop
        self._numbers = numbers
        # PyDLL keeps the interpreter's lock: the calls do not wait, and giving it away and taking it back may.
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
        """Begin to write all buffers, at most `WRITE_BYTES_MAX`, one after the other, and to make them durable.

        Returns:
            0: `ended` will be called from the loop. Otherwise the error number of a refusal, and nothing was begun: EAGAIN if it may work
            another time.
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
        """Give the context back; waits for what is in flight, whose end nobody is told."""
        self.loop.remove_reader(self._eventfd)
        self._other(ctypes.c_long(self._numbers.destroy), self._context)
        os.close(self._eventfd)

    def _collect(self) -> None:
        """Writes have ended."""
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
            assert ended is not None, "a write ends once"
            self._idle.append(number)
            try:
                ended(result)
            except Exception as error:  # noqa: BLE001 - one caller's mistake must not keep the next one from its result
                self.loop.call_exception_handler(
                    {"message": "told of a write, a callback raised", "exception": error}
                )

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"asynchronous writes: {os.strerror(number)}")
