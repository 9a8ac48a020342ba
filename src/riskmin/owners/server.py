"""An owner's service over gRPC with mutual TLS: bytes in, bytes out, in one piece or several."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from riskmin.core.messages import MissingExtra, extra_hint
from riskmin.owners.owner import Owner
from riskmin.owners.wire.codec import OwnerMessage, encode

SERVICE = "riskmin.Owner"
CHUNK = 2**21
"""Messages above this many bytes are sent in pieces of that length."""


def import_grpc() -> Any:
    """Return the module grpc; raise an ImportError that names the extra."""
    try:
        import grpc
    except ImportError:
        raise MissingExtra(f"owners talk by gRPC over TLS: {extra_hint('owners')}") from None
    return grpc


def chunks(data: bytes) -> Iterator[bytes]:
    """Yield the pieces of a message."""
    yield from (data[i : i + CHUNK] for i in range(0, len(data), CHUNK))


class TlsFiles:
    """Certificate of the authority, own certificate and own key, as PEM files."""

    def __init__(self, ca: str | Path, cert: str | Path, key: str | Path) -> None:
        for path in (ca, cert, key):
            if not Path(path).is_file():
                raise ValueError(f"there is no file {path}: check the path, or run 'riskmin owners init'")
        self.ca, self.cert, self.key = (Path(path).read_bytes() for path in (ca, cert, key))


class OwnerServer:
    """The service of an owner; `stop` ends it.

    Parameters
    ----------
    owner : Owner
    tls : TlsFiles
        Clients without a certificate of this authority are refused in the handshake.
    address : str
        HOST:PORT; port 0 for any free one, which is then `port`.
    """

    MAX_REQUESTS = 64
    """Requests at the same time, of all peers."""
    MAX_PER_PEER = 4
    """Requests at the same time of one peer, by the name in its certificate."""
    PIECE_SECONDS = 5.0
    """Within which a message in pieces must be whole, plus a second per MiB that the policy allows."""

    def __init__(self, owner: Owner, tls: TlsFiles, address: str = "127.0.0.1:0") -> None:
        grpc = import_grpc()
        self.owner = owner
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()
        limit = CHUNK + 2**16
        self.server = grpc.server(
            # waiting for the pieces of a message takes a thread: more of them than requests of all peers
            ThreadPoolExecutor(max_workers=self.MAX_REQUESTS),
            maximum_concurrent_rpcs=self.MAX_REQUESTS,
            options=[
                # connections that do nothing are closed, also those that never finish the handshake
                ("grpc.max_connection_idle_ms", 300_000),
                ("grpc.server_handshake_timeout_ms", 5_000),
                ("grpc.max_concurrent_streams", self.MAX_PER_PEER),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
                ("grpc.so_reuseport", 0),
            ],
        )
        handlers = {
            "Call": grpc.unary_unary_rpc_method_handler(self._call),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        credentials = grpc.ssl_server_credentials(
            [(tls.key, tls.cert)], root_certificates=tls.ca, require_client_auth=True
        )
        try:
            self.port = self.server.add_secure_port(address, credentials)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise ValueError(f"{address} cannot be listened at: it is in use, or no address of this machine")
        self.server.start()

    @contextmanager
    def _request(self, context: Any) -> Iterator[str]:
        """Yield the name of a peer, unless too many of its requests are open."""
        peer = peer_name(context)
        with self._lock:
            full = self._open[peer] >= self.MAX_PER_PEER
            self._open[peer] += not full
        if full:
            context.abort(
                import_grpc().StatusCode.RESOURCE_EXHAUSTED,
                f"{peer} has {self.MAX_PER_PEER} requests open: wait for their answers",
            )
        try:
            yield peer
        finally:
            with self._lock:
                self._open[peer] -= 1

    def _call(self, request: bytes, context: Any) -> bytes:
        with self._request(context) as peer:
            return self.owner.handle(peer, request)

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        with self._request(context) as peer:
            # a stream that sends nothing is ended: its next piece raises then
            seconds = self.PIECE_SECONDS + self.owner.policy.max_bytes / 2**20
            timer = threading.Timer(self.PIECE_SECONDS, context.cancel)
            whole = threading.Timer(seconds, context.cancel)
            for each in (timer, whole):
                each.daemon = True
                each.start()
            try:
                pieces, length = [], 0
                for piece in requests:
                    timer.cancel()
                    pieces.append(piece)
                    length += len(piece)
                    # stop reading before more is held in memory than the policy allows
                    if length > self.owner.policy.max_bytes:
                        reason = "the message is longer than the policy allows"
                        yield encode(OwnerMessage("invalid", {"reason": reason}))
                        return
            finally:
                timer.cancel()
                whole.cancel()
            yield from chunks(self.owner.handle(peer, b"".join(pieces)))

    def stop(self) -> None:
        """End the service, and let answers that are being computed end."""
        self.server.stop(grace=1.0).wait()
        self.owner.log.close()


def peer_name(context: Any) -> str:
    """Return the common name of the client's certificate, which the TLS handshake has verified."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode("utf-8", "replace") if names else ""


def serve_forever(server: OwnerServer) -> None:
    """Wait for SIGINT or SIGTERM, then end the service."""
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    done.wait()
    server.stop()
