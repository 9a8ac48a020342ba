"""TLS certificates for tests and small networks: an authority of one's own, and a certificate per name."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def make_authority(folder: Path, names: Sequence[str], hosts: Sequence[str], days: int = 365) -> None:
    """Write ca.pem with its key, and NAME.pem and NAME.key for each name, signed by the authority.

    Parameters
    ----------
    folder : path
        Made if it does not exist; no file in it is replaced.
    names : sequence of str
        Owners and coordinators: the common names by which they know each other.
    hosts : sequence of str
        Host names and addresses at which owners listen.
    days : int
        How long the certificates are valid.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    if len(set(names)) != len(names) or not all(n.replace("-", "").replace("_", "").isalnum() for n in names):
        raise ValueError(f"{', '.join(names)}: give different names of a-z, 0-9, - and _")
    paths = [folder / f"{name}{end}" for name in ("ca", *names) for end in (".pem", ".key")]
    if existing := [path.name for path in paths if path.exists()]:
        raise ValueError(f"{folder} already holds {existing[0]}: choose another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("riskmin-authority", ca_key, None, hosts, days)
    _write(folder, "ca", ca_key, ca)
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        _write(folder, name, key, _certificate(name, key, (ca, ca_key), hosts, days))


def _certificate(name: str, key: Any, issuer: tuple[Any, Any] | None, hosts: Sequence[str], days: int) -> Any:
    """Return a certificate for a key; without an issuer, one that signs itself, of an authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    ca, ca_key = issuer or (None, key)
    signer = ca_key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if ca is None else ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # clocks of other machines may be slow by minutes
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=ca is None, path_length=0 if ca is None else None), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )
    if ca is not None:
        alternatives: list[x509.GeneralName] = [x509.DNSName(name)]
        alternatives += [_general_name(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(ca_key, hashes.SHA256())


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(folder: Path, name: str, key: Any, certificate: Any) -> None:
    from cryptography.hazmat.primitives import serialization

    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # the key is readable by its owner only, from the first byte on
    with open(os.open(folder / f"{name}.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
