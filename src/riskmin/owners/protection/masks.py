r"""Secure aggregation: pairwise masks that cancel in the sum over owners, so that only sums can be read.

Owners i and j share a secret :math:`s_{ij}` (X25519). Owner i sends, modulo :math:`2^{64}`,

.. math:: x_i + \sum_{j > i} \mathrm{PRG}(s_{ij}, n) - \sum_{j < i} \mathrm{PRG}(s_{ij}, n)

for request n. Keys are signed by the owners' certificates, so that a coordinator cannot put its own in their
place. Numbers are sent in two parts of fixed point, which together keep all digits of a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.owners.protection.policy import AnswerRefused

HIGH, LOW = 2.0**36, 2.0**72
"""The parts are multiples of 1 / HIGH and 1 / LOW."""
MAX_SUM = 2.0**27
"""Sums must be below this in absolute value, so that they do not overflow."""


def to_parts(x: NDArray, n_owners: int) -> NDArray:
    """Return numbers as pairs of 64-bit integers in fixed point, all high parts first.

    Examples
    --------
    >>> x = np.array([0.1, -3.0])
    >>> from_parts(to_parts(x, 1) + to_parts(x, 1)).tolist()
    [0.2, -6.0]
    """
    if not np.all(np.abs(x) < MAX_SUM / n_owners):
        raise AnswerRefused("an answer is too large for the fixed point of masks: give columns smaller units")
    high = np.floor(x * HIGH)
    low = (x - high / HIGH) * LOW
    parts: NDArray = np.concatenate([high, np.floor(low)]).astype(np.int64).view(np.uint64)
    return parts


def from_parts(parts: NDArray) -> NDArray:
    """Return the numbers of a sum of parts modulo 2^64."""
    high, low = np.split(parts.view(np.int64), 2)
    x: NDArray = high / HIGH + low / LOW
    return x


class MaskKey:
    """The key of an owner for one run, and the secrets that it shares with the other owners.

    Parameters
    ----------
    name : str
        That of the owner's certificate.
    identity : TlsFiles
        The authority, and the owner's certificate and key.
    run : str
        The number of the run, in which all owners must agree.
    """

    def __init__(self, name: str, identity: Any, run: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.name, self.identity, self.run = name, identity, run
        self._private = X25519PrivateKey.generate()
        self.secrets: list[tuple[int, bytes]] = []
        self.n_owners = 0

    def card(self) -> dict[str, str]:
        """Return the public key, with a signature by the owner's certificate."""
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key: Any = serialization.load_pem_private_key(self.identity.key, None)
        public = self._private.public_key().public_bytes_raw()
        signature = key.sign(self._signed(public), ec.ECDSA(hashes.SHA256()))
        return {
            "public": public.hex(),
            "signature": signature.hex(),
            "certificate": self.identity.cert.decode(),
        }

    def _signed(self, public: bytes) -> bytes:
        return b"riskmin mask key\0" + self.run.encode() + b"\0" + public

    def set_peers(self, cards: Sequence[Any], min_owners: int) -> None:
        """Verify the cards of all owners, and derive the secrets shared with each of the others."""
        from cryptography.exceptions import InvalidSignature

        if self.secrets:
            raise AnswerRefused("the owners of this run were stated before: open another run")
        try:
            found = [self._verified(card) for card in cards]
        except (InvalidSignature, ValueError, KeyError, TypeError):
            raise AnswerRefused("a mask key is not signed by a certificate of the authority") from None
        publics = dict(found)
        own = self._private.public_key().public_bytes_raw()
        if len(publics) < len(found) or publics.get(self.name) != own or len(publics) < min_owners:
            raise AnswerRefused(f"answers are for sums of {min_owners} different owners, this one among them")
        self.n_owners = len(publics)
        self.secrets = [
            (1 if name > self.name else -1, self._shared(public))
            for name, public in sorted(publics.items())
            if name != self.name
        ]

    def _verified(self, card: Any) -> tuple[str, bytes]:
        """Return the name and public key of a card; raise unless its signatures hold."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        certificate = x509.load_pem_x509_certificate(card["certificate"].encode())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(self.identity.ca))
        public, key = bytes.fromhex(card["public"]), certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or len(public) != 32:
            raise ValueError("no key of an elliptic curve")
        key.verify(bytes.fromhex(card["signature"]), self._signed(public), ec.ECDSA(hashes.SHA256()))
        return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value), public

    def _shared(self, public: bytes) -> bytes:
        """Return the key of the pseudorandom masks shared with an owner."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        secret = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        return HKDF(hashes.SHA256(), 32, None, b"riskmin masks\0" + self.run.encode()).derive(secret)

    def masked(self, sequence: int, x: NDArray) -> NDArray:
        """Return the numbers in fixed point with the masks of a request, which must be used once."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        if not self.secrets:
            raise AnswerRefused("answers are masked, and the other owners of the run are not known yet")
        total = to_parts(x, self.n_owners)
        nonce = b"\0" * 8 + sequence.to_bytes(8, "little")
        for sign, secret in self.secrets:
            stream = Cipher(algorithms.ChaCha20(secret, nonce), None).encryptor().update(bytes(total.nbytes))
            mask = np.frombuffer(stream, np.uint64)
            total = total + mask if sign > 0 else total - mask
        return total
