"""Certificate authority and certificates of a cluster, for clusters without one of their own.

Keys are ECDSA on P-256: a handshake costs the broker about a tenth of that with RSA 2048.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3_650
CLOCK_SKEW: Final = timedelta(minutes=5)
PRIVATE: Final = 0o600
PUBLIC: Final = 0o644


@dataclass(frozen=True, slots=True, repr=False)
class Certificate:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key, not encrypted."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def write(self, directory: Path, name: str, *, replace: bool = False) -> None:
        """Write NAME.pem and NAME.key; only the owner can read the key. A reader sees complete files only.

        Raises:
            FileExistsError: one of them exists, and `replace` is not set.
            OSError: a file cannot be written.
        """
        key, certificate = directory / f"{name}.key", directory / f"{name}.pem"
        for path in (key, certificate):
            if not replace and path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        _write(key, self.key_pem, PRIVATE)
        _write(certificate, self.certificate_pem, PUBLIC)


def read_certificate(directory: Path, name: str) -> Certificate:
    """Read what `Certificate.write` wrote.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is malformed, or the key is not of the kind that `create_authority` creates.
    """
    certificate = x509.load_pem_x509_certificate((directory / f"{name}.pem").read_bytes())
    key = serialization.load_pem_private_key((directory / f"{name}.key").read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{directory / name}.key is not an ECDSA key")  # noqa: TRY004 - bad input
    return Certificate(certificate, key)


def create_authority(name: str, now: datetime) -> Certificate:
    """Create a certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key, now, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(is_authority=True), critical=True)
    return Certificate(builder.sign(key, hashes.SHA256()), key)


def issue_certificate(
    authority: Certificate, name: str, hosts: Sequence[str], now: datetime, *, days: int
) -> Certificate:
    """Issue a certificate for servers and clients.

    Args:
        authority: signs the certificate.
        name: common name; Kafka's principal of a client is User:CN=NAME.
        hosts: host names and addresses of a server; none for a client.
        now: begin of the validity.
        days: length of the validity.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), authority.certificate.subject, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(is_authority=False), critical=True)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    return Certificate(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    partial.replace(path)
