"""Planted bug: an upload is committed as soon as its objects are stored, whatever older uploads do."""

from __future__ import annotations

import pytest
from s3stream.upload import Upload, UploadPipeline


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    async def upload_at_once(self: UploadPipeline, upload: Upload) -> None:
        await self._uploader.upload(upload.plan)

    monkeypatch.setattr(UploadPipeline, "_upload_in_order", upload_at_once)
