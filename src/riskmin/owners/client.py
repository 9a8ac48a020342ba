"""The coordinator's connection to one owner: requests are numbered, repeated when lost, and never twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from riskmin.core import AnswersEnded, RunPaused
from riskmin.owners.server import CHUNK, SERVICE, TlsFiles, chunks, import_grpc
from riskmin.owners.wire.codec import MessageError, OwnerMessage, decode, encode


class OwnerRefused(AnswersEnded):
    """Raised if an owner refuses an answer; the message names the owner and its reason."""


class OwnerUnavailable(RunPaused):
    """Raised if an owner does not answer for the patience of the coordinator: the run pauses."""


@dataclass
class OwnerConnection:
    """A connection to an owner.

    Parameters
    ----------
    name : str
        That of the owner's certificate.
    address : str
        HOST:PORT.
    tls : TlsFiles
    patience : float
        Seconds for which an owner that does not answer is asked again.
    timeout : float
        Seconds after which one attempt is given up.
    """

    name: str
    address: str
    tls: TlsFiles = field(repr=False)
    patience: float = 60.0
    timeout: float = 120.0
    n_rounds: int = 0

    def __post_init__(self) -> None:
        self._channel: Any = None
        self._connect()

    def _connect(self) -> None:
        grpc = import_grpc()
        self.close()
        credentials = grpc.ssl_channel_credentials(self.tls.ca, self.tls.key, self.tls.cert)
        limit = CHUNK + 2**16
        options = [
            # the certificate must be that of this owner, wherever it listens
            ("grpc.ssl_target_name_override", self.name),
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", limit),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        self._channel = grpc.secure_channel(self.address, credentials, options)
        self._call = self._channel.unary_unary(f"/{SERVICE}/Call")
        self._stream = self._channel.stream_stream(f"/{SERVICE}/Stream")

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()

    def start(self, message: OwnerMessage, reply_is_long: bool = False) -> Callable[[], OwnerMessage]:
        """Send a request; the function that is returned waits for the reply."""
        data = encode(message)
        # a reply with a gradient is as long as w
        pending = self.send(data, reply_is_long)

        def wait() -> OwnerMessage:
            return self._wait(pending, data, reply_is_long)

        return wait

    def ask(self, message: OwnerMessage) -> OwnerMessage:
        """Send a request and return the reply."""
        return self.start(message)()

    def send(self, data: bytes, reply_is_long: bool) -> Callable[[], bytes]:
        """Send the bytes of a request once; the function that is returned waits for those of the reply."""
        self.n_rounds += 1
        if len(data) <= CHUNK and not reply_is_long:
            future = self._call.future(data, timeout=self.timeout)
            return lambda: bytes(future.result())
        pieces = self._stream(chunks(data), timeout=self.timeout)
        return lambda: b"".join(pieces)

    def _decoded(self, data: bytes) -> OwnerMessage:
        try:
            return decode(data)
        except MessageError as error:
            raise OwnerRefused(f"{self.name} at {self.address} has sent no valid reply: {error}") from None

    def _wait(self, pending: Callable[[], bytes], data: bytes, reply_is_long: bool) -> OwnerMessage:
        grpc = import_grpc()
        deadline, delay = time.monotonic() + self.patience, 0.05
        while True:
            try:
                reply = self._decoded(pending())
                if reply.kind != "busy":
                    return checked_reply(self.name, reply)
                problem = "requests come faster than it allows"
            except grpc.RpcError as error:
                problem = error.details() or error.code().name
                if error.code() not in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    grpc.StatusCode.CANCELLED,
                ):
                    raise OwnerRefused(f"{self.name} at {self.address}: {problem}") from None
            if time.monotonic() + delay > deadline:
                raise OwnerUnavailable(
                    f"{self.name} at {self.address} has not answered for {self.patience:g} seconds "
                    f"({problem}): start it again, and repeat the command to go on from the checkpoint"
                )
            time.sleep(delay)
            delay = min(2 * delay, 1.0)
            # the same bytes again: an owner that has answered them sends the same reply
            pending = self.send(data, reply_is_long)


def checked_reply(name: str, reply: OwnerMessage) -> OwnerMessage:
    """Return the reply of an owner; raise `OwnerRefused` if it is a refusal."""
    if reply.kind in ("refused", "invalid"):
        raise OwnerRefused(f"{name} refuses: {reply.fields.get('reason')}")
    return reply
