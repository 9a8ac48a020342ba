"""A client of a Dask scheduler for as long as a block lasts, encrypted where the address says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from riskmin.executors.dask_cluster import ANSWER

TLS = "tls://"


@contextmanager
def dask_client(
    address: str, *, ca: str | None = None, cert: str | None = None, key: str | None = None
) -> Iterator[Any]:
    """A client of the scheduler at an address, closed at the end of the block.

    Parameters
    ----------
    address : str
        ``tcp://host:8786``, or ``tls://host:8786`` for a cluster that encrypts.
    ca, cert, key : str, optional
        For tls://, files in PEM form: the authority that the cluster's certificates are from, and the
        certificate and the key of this client. Those of Dask's configuration by default.

    Raises
    ------
    ValueError
        Where the address is none, files are given for no encryption, or Dask is not installed.
    ConnectionError
        Where no scheduler answers.

    Examples
    --------
    >>> with dask_client("host:8786") as client:
    ...     pass
    Traceback (most recent call last):
    ValueError: 'host:8786' is no address of a Dask scheduler: write tcp://HOST:PORT or tls://HOST:PORT
    """
    if not address.startswith(("tcp://", TLS)):
        raise ValueError(
            f"{address!r} is no address of a Dask scheduler: write tcp://HOST:PORT or tls://HOST:PORT"
        )
    if any((ca, cert, key)) and not address.startswith(TLS):
        raise ValueError(f"certificates are for addresses of tls://, but {address} is not: leave them out")
    try:
        import distributed
    except ImportError as error:
        raise ValueError(f"Dask is not installed ({error}): pip install 'riskmin[dask]'") from None
    make: Any = distributed.Client
    security = _security(ca, cert, key) if address.startswith(TLS) else None
    try:
        client = make(address, security=security, timeout=ANSWER, set_as_default=False)
    except (OSError, ValueError, RuntimeError) as error:
        about = ", and that the certificates are those of the cluster" if address.startswith(TLS) else ""
        raise ConnectionError(
            f"no Dask scheduler answers at {address} ({error}): check that one runs there{about}"
        ) from None
    log = logging.getLogger("distributed.client")
    level = log.level
    log.setLevel(logging.CRITICAL)  # where the scheduler dies, an error of ours says so, and better
    try:
        yield client
    finally:
        client.close(timeout=2)
        log.setLevel(level)


def _security(ca: str | None, cert: str | None, key: str | None) -> Any:
    """What a client needs to be let in; a ValueError where a file is missing or cannot be used."""
    import distributed

    make: Any = distributed.Security
    files = {"tls_ca_file": ca, "tls_client_cert": cert, "tls_client_key": key}
    found = make(require_encryption=True, **{k: v for k, v in files.items() if v is not None})
    try:
        fine = found.get_connection_args("client").get("ssl_context") is not None
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the certificates cannot be used ({error}): give files in PEM form, and the key that belongs"
        ) from None
    if not fine:
        raise ValueError("an address of tls:// needs certificates: give the authority's, yours, and its key")
    return found
