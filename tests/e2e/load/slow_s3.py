"""A distant S3 server: a proxy that delays every request by a lognormal time.

It implements HTTP/1.1 framing as far as S3 clients and servers use it. It is a separate process, so that its
CPU time does not count in measurements. Host names stay as the client signed them.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

P99_SIGMAS: Final = 2.3263
"""In 99 of 100 cases a normal variable is below its mean plus this many standard deviations."""
PIECE_BYTES: Final = 256 * 1024
HEAD_BYTES_MAX: Final = 64 * 1024
NO_BODY: Final = (b"204", b"304")


@contextmanager
def slow_s3(endpoint: str, *, p50_s: float, p99_s: float, seed: int = 1) -> Iterator[str]:
    """Run a proxy for `endpoint` (http://HOST:PORT); return its own endpoint."""
    words = ["--upstream", urlsplit(endpoint).netloc, "--p50", str(p50_s), "--p99", str(p99_s)]
    command = [sys.executable, "-m", "tests.e2e.load.slow_s3", *words, "--seed", str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://{process.stdout.readline().strip()}"
        finally:
            process.kill()


class SlowProxy:
    """Serves connections with one upstream connection each."""

    def __init__(self, upstream: tuple[str, int], p50_s: float, p99_s: float, seed: int) -> None:
        self._upstream = upstream
        self._mu = math.log(p50_s)
        self._sigma = math.log(p99_s / p50_s) / P99_SIGMAS
        self._random = random.Random(seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection(*self._upstream, limit=PIECE_BYTES)
            while await self._exchange(reader, writer, back, there):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, there):
                if each is not None:
                    each.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamReader,
        there: asyncio.StreamWriter,
    ) -> bool:
        """Forward one request and its response; return False at the end of the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        fields = _fields(head)
        if fields.get(b"expect", b"").lower() == b"100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = _without(head, b"expect")
        body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
        await asyncio.sleep(self._random.lognormvariate(self._mu, self._sigma))
        there.writelines((head, body))
        await there.drain()
        answer = await back.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await _relay_body(head, answer, back, writer)
        await writer.drain()
        return _fields(answer).get(b"connection", b"").lower() != b"close"


async def _relay_body(
    request: bytes, answer: bytes, back: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    fields = _fields(answer)
    if request.startswith(b"HEAD ") or answer.split(b" ", 2)[1] in NO_BODY:
        return
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        while True:
            size = await back.readuntil(b"\r\n")
            chunk = await back.readexactly(int(size.split(b";")[0], 16) + 2)
            writer.writelines((size, chunk))
            if len(chunk) == len(b"\r\n"):
                return
    left = int(fields.get(b"content-length", b"0"))
    while left:
        piece = await back.readexactly(min(left, PIECE_BYTES))
        writer.write(piece)
        await writer.drain()
        left -= len(piece)


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:] if line)
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _without(head: bytes, name: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(name + b":"))


async def _main(upstream: str, p50_s: float, p99_s: float, seed: int) -> None:
    host, _, port = upstream.partition(":")
    proxy = SlowProxy((host, int(port)), p50_s, p99_s, seed)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
    address = server.sockets[0].getsockname()
    print(f"{address[0]}:{address[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Main function of the proxy's process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--p50", type=float, required=True)
    parser.add_argument("--p99", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(options.upstream, options.p50, options.p99, options.seed))


if __name__ == "__main__":
    main()
