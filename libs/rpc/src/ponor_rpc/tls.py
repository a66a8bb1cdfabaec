"""Mutual TLS: client and server present certificates that the same authorities signed.

The files are read when a port is bound or a channel is created, so a new certificate needs only a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one process.

    A controller that connects to a peer verifies the host: the peer's certificate must contain the name or IP
    address in the peer's address.
    """

    certificate: Path
    key: Path
    authorities: Path

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials of a server. The server refuses clients without a certificate.

        Raises:
            OSError: a file cannot be read.
        """
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], self.authorities.read_bytes(), require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a client.

        Raises:
            OSError: a file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            self.authorities.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )
