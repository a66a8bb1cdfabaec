"""An S3 server in memory with one flaw at a time, for tests of the checks that must detect it.

The flaws are taken from real systems: servers that ignored If-None-Match or checked it without a
lock (2025 to 2026), proxies that cut ranges, listings that lag. Signatures are not checked.
"""

from __future__ import annotations

import enum
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

PAGE_KEYS = 1000
TURNS_MAX = 40


class Flaw(enum.Enum):
    """Flaws of the server."""

    NONE = "nothing"
    IGNORES_CONDITIONS = "If-None-Match is ignored"
    CHECKS_WITHOUT_LOCK = "If-None-Match is checked, and the object written a moment later"
    CUTS_RANGES = "a range comes back one byte short"
    LISTS_LATE = "the newest object is not listed yet"
    LOSES_PARTS = "a multipart upload keeps its first part only"


class _QuietServer(ThreadingHTTPServer):
    """Disconnecting clients are part of the tests, so their errors are not logged."""

    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class FlawedS3:
    """One bucket with any name. `lifecycle` is the XML of GetBucketLifecycleConfiguration."""

    def __init__(self, flaw: Flaw = Flaw.NONE, lifecycle: str = "") -> None:
        self.flaw = flaw
        self.lifecycle = lifecycle
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.checks: Counter[str] = Counter()
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = _QuietServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The URL as an argument of `ponor doctor storage`."""
        return f"s3://bucket/data?endpoint=http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_REGION": "us-east-1",
        }


class _Handler(BaseHTTPRequestHandler):
    store: FlawedS3
    protocol_version = "HTTP/1.1"

    key: str
    query: dict[str, str]

    def do_PUT(self) -> None:
        self._parse()
        body = self._body()
        if "uploadId" in self.query:
            self.store.uploads[self.query["uploadId"]][1][int(self.query["partNumber"])] = body
            self._answer(200, headers={"ETag": f'"{len(body)}"'})
            return
        flaw = self.store.flaw
        conditional = self.headers.get("If-None-Match") == "*" and flaw is not Flaw.IGNORES_CONDITIONS
        if flaw is Flaw.CHECKS_WITHOUT_LOCK:
            taken = self.key in self.store.objects
            self._let_rivals_check()
            if not (conditional and taken):
                self.store.objects[self.key] = body
        else:
            with self.store.lock:
                taken = self.key in self.store.objects
                if not (conditional and taken):
                    self.store.objects[self.key] = body
        if conditional and taken:
            self._error(412, "PreconditionFailed")
        else:
            self._answer(200, headers={"ETag": f'"{hash(body) & 0xFFFF_FFFF:x}"'})

    def do_GET(self) -> None:
        self._parse()
        if not self.key:
            self._bucket()
            return
        data = self.store.objects.get(self.key)
        if data is None:
            self._error(404, "NoSuchKey")
            return
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            self._answer(200, data, self._meta())
            return
        first, last = match[1], match[2]
        start = max(0, len(data) - int(last)) if not first else int(first)
        end = len(data) if not first or not last else min(len(data), int(last) + 1)
        if start >= len(data):
            self._error(416, "InvalidRange")
            return
        piece = data[start:end]
        if self.store.flaw is Flaw.CUTS_RANGES and len(piece) > 1:
            end -= 1
            piece = piece[:-1]
        self._answer(206, piece, {**self._meta(), "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def do_HEAD(self) -> None:
        self._parse()
        data = self.store.objects.get(self.key)
        if data is None:
            self._answer(404)
        else:
            self.send_response(200)
            for name, value in {**self._meta(), "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()

    def do_DELETE(self) -> None:
        self._parse()
        if "uploadId" in self.query:
            self.store.uploads.pop(self.query["uploadId"], None)
        else:
            self.store.objects.pop(self.key, None)
        self._answer(204)

    def do_POST(self) -> None:
        self._parse()
        body = self._body()
        if "delete" in self.query:
            keys = [each.text or "" for each in ET.fromstring(body).iter() if each.tag.endswith("Key")]
            for key in keys:
                self.store.objects.pop(key, None)
            rows = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self._xml(f"<DeleteResult>{rows}</DeleteResult>")
        elif "uploads" in self.query:
            upload_id = f"upload-{len(self.store.uploads)}-{time.monotonic_ns()}"
            self.store.uploads[upload_id] = (self.key, {})
            self._xml(
                f"<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>{escape(self.key)}</Key>"
                f"<UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
            )
        else:
            _, parts = self.store.uploads.pop(self.query["uploadId"])
            kept = [parts[number] for number in sorted(parts)]
            self.store.objects[self.key] = b"".join(kept[:1] if self.store.flaw is Flaw.LOSES_PARTS else kept)
            self._xml(
                f"<CompleteMultipartUploadResult><Bucket>bucket</Bucket><Key>{escape(self.key)}</Key>"
                '<ETag>"whole"</ETag></CompleteMultipartUploadResult>'
            )

    def _let_rivals_check(self) -> None:
        """Wait until another request has read the same key. Without a rival, wait for a number of
        turns, because on a busy machine a rival needs longer, and so do turns.
        """
        checks = self.store.checks
        checks[self.key] += 1
        mine = checks[self.key]
        for _ in range(TURNS_MAX):
            if mine > 1 or checks[self.key] > mine:
                return
            time.sleep(0.005)

    def _bucket(self) -> None:
        prefix = self.query.get("prefix", "")
        if "uploads" in self.query:
            rows = "".join(
                f"<Upload><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId></Upload>"
                for upload_id, (key, _) in self.store.uploads.items()
                if key.startswith(prefix)
            )
            self._xml(f"<ListMultipartUploadsResult>{rows}</ListMultipartUploadsResult>")
        elif "lifecycle" in self.query:
            if self.store.lifecycle:
                self._xml(self.store.lifecycle)
            else:
                self._error(404, "NoSuchLifecycleConfiguration")
        elif "versioning" in self.query:
            self._xml("<VersioningConfiguration/>")
        elif "object-lock" in self.query:
            self._error(404, "ObjectLockConfigurationNotFoundError")
        else:
            self._list(prefix)

    def _list(self, prefix: str) -> None:
        keys = sorted(key for key in self.store.objects if key.startswith(prefix))
        if self.store.flaw is Flaw.LISTS_LATE and len(keys) > 1:
            keys.remove(max(keys))
        after = self.query.get("continuation-token", "")
        page = [key for key in keys if key > after][:PAGE_KEYS]
        is_cut = bool(page) and page[-1] != keys[-1]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"e"</ETag><Size>{len(self.store.objects[key])}</Size></Contents>'
            for key in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_cut else ""
        self._xml(
            f"<ListBucketResult><IsTruncated>{'true' if is_cut else 'false'}</IsTruncated>"
            f"<KeyCount>{len(page)}</KeyCount>{more}{rows}</ListBucketResult>"
        )

    def _parse(self) -> None:
        parts = urlsplit(self.path)
        self.key = unquote(parts.path).removeprefix("/bucket").lstrip("/")
        self.query = {
            name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()
        }

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _meta(self) -> dict[str, str]:
        return {"ETag": '"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}

    def _xml(self, text: str) -> None:
        self._answer(200, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode())

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
