"""Checks of S3 behaviour beyond the port: lost answers, overwrites, multipart uploads, checksums, clock."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeAlias

from crc32c import crc32c

from s3stream.stores.probe.report import Finding, Grade
from s3stream.stores.probe.s3_requests import S3Answer, S3RequestError, S3Requests

PART_BYTES_MIN: Final = 5 * 1024 * 1024
SKEW_S_WARNING: Final = 60.0
SETTLE_TRIES_MAX: Final = 50
SETTLE_S: Final = 0.1
_UPLOAD_ID: Final = re.compile(rb"<UploadId>([^<]+)</UploadId>")
_CODE: Final = re.compile(rb"<Code>([^<]+)</Code>")
_CREATE: Final = {"If-None-Match": "*"}

S3Check: TypeAlias = Callable[[S3Requests, str], tuple[Grade, str]]


def lost_answers(requests: S3Requests, prefix: str) -> tuple[Grade, str]:
    """One writer disconnects before the answer, another writes the key, the first repeats its put.
    One object must remain, and no repeat may replace it.
    """
    key = f"{prefix}/lost-answer"
    ours, theirs = b"first writer " * 100, b"second writer " * 100
    requests.send_and_leave("PUT", key, headers=_CREATE, body=ours)
    statuses = []
    for number in range(SETTLE_TRIES_MAX):
        answer = requests.send("PUT", key, headers=_CREATE, body=theirs if number % 2 else ours)
        statuses.append(answer.status)
        if answer.status not in (200, 409, 412):
            what = f"a create-only put is answered {_said(answer)}; 200, 409 or 412 were expected"
            return Grade.UNSAFE, what
        if statuses.count(412) >= 2:
            break
        time.sleep(SETTLE_S)  # noqa: TID251 - blocking requests, never in a service
    there = requests.send("GET", key).body
    if statuses.count(200) > 1 or there not in (ours, theirs):
        return Grade.UNSAFE, "repeating a create-only put whose answer was lost replaced the object"
    if 412 not in statuses:
        what = f"repeated create-only puts are never refused; answers were {sorted(set(statuses))}"
        return Grade.UNSAFE, what
    return Grade.OK, "repeats after a lost answer are refused (412), the object stays"


def overwrites(requests: S3Requests, prefix: str) -> tuple[Grade, str]:
    """A read must return the new bytes after an overwrite. Ponor never overwrites, but old bytes
    show a stale cache in the path.
    """
    key = f"{prefix}/overwrite"
    for number in range(5):
        content = f"version {number}".encode()
        if not requests.send("PUT", key, body=content).is_success:
            return Grade.NOTE, "an unconditional put is refused; Ponor makes none"
        if requests.send("GET", key).body != content:
            return (
                Grade.WARNING,
                "a read right after an overwrite shows the old bytes; is there a cache in between?",
            )
    return Grade.OK, "5 overwrites, each read at once"


def checksums(requests: S3Requests, prefix: str) -> tuple[Grade, str]:
    """The server should refuse a body that was damaged in transit. Ponor's objects carry their own
    CRC32C as well.
    """
    content = b"the body that arrived"
    good = base64.b64encode(crc32c(content).to_bytes(4, "big")).decode()
    bad = base64.b64encode((crc32c(content) ^ 1).to_bytes(4, "big")).decode()
    accepted = requests.send(
        "PUT", f"{prefix}/crc-good", headers={"x-amz-checksum-crc32c": good}, body=content
    )
    if not accepted.is_success:
        return Grade.WARNING, f"a correct CRC32C is refused: {_said(accepted)}"
    if requests.send("GET", f"{prefix}/crc-good").body != content:
        return Grade.UNSAFE, "a put with a checksum stored different bytes"
    damaged = requests.send("PUT", f"{prefix}/crc-bad", headers={"x-amz-checksum-crc32c": bad}, body=content)
    md5 = base64.b64encode(hashlib.md5(b"another body", usedforsecurity=False).digest()).decode()
    wrong_md5 = requests.send("PUT", f"{prefix}/md5-bad", headers={"Content-MD5": md5}, body=content)
    ignored = [
        name for name, answer in (("CRC32C", damaged), ("Content-MD5", wrong_md5)) if answer.is_success
    ]
    if ignored:
        return (
            Grade.WARNING,
            (
                f"a body that does not match its {' and '.join(ignored)} is accepted; only"
                " Ponor's own checksums find damage"
            ),
        )
    return Grade.OK, "bodies that do not match CRC32C or Content-MD5 are refused"


def multipart_uploads(requests: S3Requests, prefix: str) -> tuple[Grade, str]:
    """A multipart upload of two parts, a part that is too small, and an abort that removes all parts."""
    key = f"{prefix}/multipart"
    parts = [b"a" * PART_BYTES_MIN, b"b" * 100]
    completed = _upload(requests, key, parts)
    if not completed.is_success or b"<Error>" in completed.body:
        return Grade.UNSAFE, f"a multipart upload of two parts fails: {_said(completed)}"
    if requests.send("GET", key).body != b"".join(parts):
        return Grade.UNSAFE, "a read of a multipart upload returned different bytes"
    small = _upload(requests, f"{prefix}/multipart-small", [b"a" * 100, b"b" * 100])
    is_strict = not small.is_success or b"<Error>" in small.body
    upload_id = _begin(requests, f"{prefix}/multipart-aborted")
    requests.send(
        "PUT", f"{prefix}/multipart-aborted", query={"partNumber": "1", "uploadId": upload_id}, body=b"x"
    )
    if upload_id.encode() not in requests.send("GET", query={"uploads": "", "prefix": prefix}).body:
        return (
            Grade.WARNING,
            "an upload in progress is not listed; abandoned parts would be billed without being visible",
        )
    requests.send("DELETE", f"{prefix}/multipart-aborted", query={"uploadId": upload_id})
    if upload_id.encode() in requests.send("GET", query={"uploads": "", "prefix": prefix}).body:
        return Grade.WARNING, "an aborted upload is still listed; its parts may be billed indefinitely"
    size = "parts below 5 MiB are refused" if is_strict else "parts below 5 MiB are accepted, unlike in S3"
    return (Grade.OK if is_strict else Grade.NOTE), f"complete, list and abort work; {size}"


def clock_skew(requests: S3Requests, prefix: str) -> tuple[Grade, str]:
    """Compare clocks: S3 refuses signatures at a difference of 15 minutes; a smaller difference may grow."""
    before = datetime.now(UTC)  # noqa: TID251 - the machine's clock is what is compared
    answer = requests.send("HEAD", f"{prefix}/no-such-key")
    text = answer.headers.get("date")
    if text is None:
        return Grade.NOTE, "answers have no Date header"
    skew_s = (parsedate_to_datetime(text) - before).total_seconds()
    if abs(skew_s) >= SKEW_S_WARNING:
        return (
            Grade.WARNING,
            f"the server's clock differs by {skew_s:+.0f} s; requests fail at 900 s; correct the clock",
        )
    return Grade.OK, f"{abs(skew_s):.0f} s apart"


S3_CHECKS: Final[tuple[tuple[str, S3Check], ...]] = (
    ("lost answers", lost_answers),
    ("overwrites", overwrites),
    ("checksums", checksums),
    ("multipart uploads", multipart_uploads),
    ("clock", clock_skew),
)


def run_s3_checks(
    requests: S3Requests,
    prefix: str,
    checks: tuple[tuple[str, S3Check], ...],
    done: Callable[[Finding], None],
) -> None:
    """Run all checks; a server that does not answer is a finding too."""
    for name, check in checks:
        try:
            grade, detail = check(requests, prefix)
        except S3RequestError as error:
            grade, detail = Grade.UNSAFE, str(error)
        done(Finding(name, grade, detail))


def _begin(requests: S3Requests, key: str) -> str:
    answer = requests.send("POST", key, query={"uploads": ""})
    match = _UPLOAD_ID.search(answer.body)
    if match is None:
        raise S3RequestError(f"a multipart upload cannot be begun: {_said(answer)}")
    return match[1].decode()


def _upload(requests: S3Requests, key: str, parts: list[bytes]) -> S3Answer:
    upload_id = _begin(requests, key)
    rows = []
    for number, part in enumerate(parts, 1):
        answer = requests.send(
            "PUT", key, query={"partNumber": str(number), "uploadId": upload_id}, body=part
        )
        etag = answer.headers.get("etag", "")
        rows.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    body = f"<CompleteMultipartUpload>{''.join(rows)}</CompleteMultipartUpload>".encode()
    completed = requests.send("POST", key, query={"uploadId": upload_id}, body=body)
    if not completed.is_success:
        requests.send("DELETE", key, query={"uploadId": upload_id})
    return completed


def _said(answer: S3Answer) -> str:
    code = _CODE.search(answer.body)
    return f"{answer.status}{f' {code[1].decode()}' if code else ''}"
