"""Context manager for a client of a Dask scheduler, encrypted for addresses that begin with tls://."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from riskmin.core.messages import extra_hint
from riskmin.executors.dask.cluster import DaskCluster

TLS = "tls://"


@contextmanager
def dask_client(
    address: str, *, ca: str | None = None, cert: str | None = None, key: str | None = None
) -> Iterator[Any]:
    """Open a client of the scheduler at an address and close it at the end of the block.

    Parameters
    ----------
    address : str
        ``tcp://host:8786``, or ``tls://host:8786`` for a cluster that encrypts.
    ca, cert, key : str, optional
        For tls://, files in PEM format: the certificate authority of the cluster, and the certificate and
        the private key of this client. By default, those of Dask's configuration.

    Raises
    ------
    ValueError
        If the address is malformed, certificates are given without tls://, or Dask is not installed.
    ConnectionError
        If no scheduler answers.
    """
    if not address.startswith(("tcp://", TLS)):
        raise ValueError(
            f"{address!r} is not the address of a Dask scheduler: write tcp://HOST:PORT or tls://HOST:PORT"
        )
    if any((ca, cert, key)) and not address.startswith(TLS):
        raise ValueError(f"certificates are for addresses of tls://, but {address} is not: leave them out")
    try:
        import distributed
    except ImportError as error:
        raise ValueError(f"Dask is not installed ({error}): {extra_hint('dask')}") from None
    make_client: Any = distributed.Client
    security = _security(ca, cert, key) if address.startswith(TLS) else None
    try:
        client = make_client(
            address, security=security, timeout=DaskCluster.SCHEDULER_TIMEOUT_SECONDS, set_as_default=False
        )
    except (OSError, ValueError, RuntimeError) as error:
        hint = ", and that the certificates are those of the cluster" if address.startswith(TLS) else ""
        raise ConnectionError(
            f"no Dask scheduler answers at {address} ({error}): check that one runs there{hint}"
        ) from None
    # if the scheduler dies, a ConnectionError of this package reports it: silence Dask's own log messages
    log = logging.getLogger("distributed.client")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield client
    finally:
        client.close(timeout=2)
        log.setLevel(level)


def _security(ca: str | None, cert: str | None, key: str | None) -> Any:
    """Return the TLS settings of a client; raise a ValueError where a file is missing or cannot be used."""
    import distributed

    make_security: Any = distributed.Security
    # files that are not given are those of Dask's configuration
    files = {"tls_ca_file": ca, "tls_client_cert": cert, "tls_client_key": key}
    security = make_security(require_encryption=True, **{k: v for k, v in files.items() if v is not None})
    try:
        # Dask returns no SSL context if certificates are missing
        has_context = security.get_connection_args("client").get("ssl_context") is not None
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the certificates cannot be used ({error}): give files in PEM format, and the matching key"
        ) from None
    if not has_context:
        raise ValueError("an address of tls:// needs certificates: give the authority's, yours, and its key")
    return security
