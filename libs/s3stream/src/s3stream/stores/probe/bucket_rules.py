"""Checks of the bucket's configuration for rules that delete, archive or lock Ponor's objects.

Only Ponor's garbage collector may delete objects, after the metadata released them. A rule that
deletes objects destroys live data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from xml.etree import ElementTree as ET

from s3stream.stores.probe.report import Grade
from s3stream.stores.probe.s3_requests import S3Answer, S3Requests

_UNREADABLE_CLASSES: Final = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes whose objects must be restored before they can be read. GLACIER_IR needs no restore."""


def lifecycle(requests: S3Requests, prefix: str) -> tuple[Grade, str]:
    """Check expiry and transitions of current objects (GetBucketLifecycleConfiguration)."""
    answer = requests.send("GET", query={"lifecycle": ""})
    if answer.status == 404:
        return (
            Grade.NOTE,
            "no rules; a rule that aborts multipart uploads after a week removes those of crashed writers",
        )
    if not answer.is_success:
        return Grade.SKIPPED, _unreadable("lifecycle rules", answer, "s3:GetLifecycleConfiguration")
    ours = prefix.partition("ponor-doctor")[0]
    findings = [each for rule in _children(answer.body, "Rule") for each in _rule(rule, ours)]
    for grade in (Grade.UNSAFE, Grade.WARNING):
        texts = [text for found, text in findings if found is grade]
        if texts:
            return grade, "; ".join(texts)
    return Grade.OK, "no rule touches Ponor's objects"


def versioning(requests: S3Requests, prefix: str) -> tuple[Grade, str]:  # noqa: ARG001 - a check's signature
    """Check versioning: retained versions cost money after Ponor deleted the objects."""
    answer = requests.send("GET", query={"versioning": ""})
    if not answer.is_success:
        return Grade.SKIPPED, _unreadable("versioning", answer, "s3:GetBucketVersioning")
    status = _text(_parse(answer.body), "Status")
    if status == "Enabled":
        return (
            Grade.WARNING,
            "versioning is on: deleted objects are still billed; add a rule that expires noncurrent versions",
        )
    return Grade.OK, f"versioning is {(status or 'off').lower()}"


def object_lock(requests: S3Requests, prefix: str) -> tuple[Grade, str]:  # noqa: ARG001
    """Check object lock: a default retention blocks Ponor's deletions."""
    answer = requests.send("GET", query={"object-lock": ""})
    if answer.status in (404, 400, 501):
        return Grade.OK, "no object lock"
    if not answer.is_success:
        return Grade.SKIPPED, _unreadable("object lock", answer, "s3:GetBucketObjectLockConfiguration")
    root = _parse(answer.body)
    mode = _text(root, "Mode")
    if mode:
        return (
            Grade.WARNING,
            f"a default retention ({mode}) protects objects; Ponor's deletions fail until the retention ends",
        )
    return Grade.OK, "object lock without default retention"


BUCKET_RULES: Final[tuple[tuple[str, Callable[[S3Requests, str], tuple[Grade, str]]], ...]] = (
    ("lifecycle rules", lifecycle),
    ("versioning", versioning),
    ("object lock", object_lock),
)


def _rule(rule: ET.Element, ours: str) -> list[tuple[Grade, str]]:
    """Return what one rule does to objects below `ours`. Ponor sets no tags, so rules for tagged
    objects do not apply.
    """
    if _text(rule, "Status") != "Enabled" or _find(rule, "Tag") is not None:
        return []
    theirs = _text(rule, "Prefix")
    if not (theirs.startswith(ours) or ours.startswith(theirs)):
        return []
    name = _text(rule, "ID") or theirs or "unnamed"
    found: list[tuple[Grade, str]] = []
    for child in rule:
        kind = _local(child)
        if kind == "Expiration" and (_text(child, "Days") or _text(child, "Date")):
            when = (
                f"after {_text(child, 'Days')} days" if _text(child, "Days") else f"on {_text(child, 'Date')}"
            )
            found.append(
                (
                    Grade.UNSAFE,
                    f"rule {name!r} deletes objects {when}, read or not; remove it or exclude this prefix",
                )
            )
        elif kind == "Transition":
            storage_class = _text(child, "StorageClass")
            if storage_class in _UNREADABLE_CLASSES:
                found.append(
                    (
                        Grade.UNSAFE,
                        f"rule {name!r} moves objects to {storage_class}, where they cannot be read",
                    )
                )
            else:
                found.append(
                    (Grade.WARNING, f"rule {name!r} moves objects to {storage_class}: reads cost more there")
                )
    return found


def _unreadable(what: str, answer: S3Answer, right: str) -> str:
    return (
        f"{what} cannot be read ({answer.status}); the permission {right} is needed"
        if answer.status == 403
        else f"{what} cannot be read ({answer.status})"
    )


def _parse(body: bytes) -> ET.Element:
    try:
        return ET.fromstring(body)  # noqa: S314 - the operator's own store; expat bounds entity expansion
    except ET.ParseError:
        return ET.Element("unreadable")


def _children(body: bytes, name: str) -> list[ET.Element]:
    return [child for child in _parse(body) if _local(child) == name]


def _find(element: ET.Element, name: str) -> ET.Element | None:
    return next((each for each in element.iter() if _local(each) == name), None)


def _text(element: ET.Element, name: str) -> str:
    found = _find(element, name)
    return (found.text or "").strip() if found is not None else ""


def _local(element: ET.Element) -> str:
    """Return an XML tag without its namespace, which some servers omit."""
    return element.tag.rpartition("}")[2]
