"""Mutual TLS for a port: both sides show a certificate of the same authorities.

What lives here: three files and what gRPC makes of them. They are read when a port is bound or a channel is made, so a new certificate needs no more than a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. A controller calls others by the host in their address: that name, or IP address, has to be in their certificate."""

    certificate: Path
    key: Path
    authorities: Path

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of a side that is called, and that refuses callers without a certificate.

        Raises:
            OSError: a file cannot be read.
        """
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], self.authorities.read_bytes(), require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Of a side that calls.

        Raises:
            OSError: a file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            self.authorities.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )
