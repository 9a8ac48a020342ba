"""Flower as a second way to the owners: its messages carry the same bytes as gRPC does.

Flower starts a process for each message, and an owner keeps scores and earlier answers between messages. So
the `ClientApp` at an owner's SuperNode passes requests on to the owner's service, `riskmin serve`, which may
listen on loopback only: one policy, one log and one set of budgets, whichever way a request comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from riskmin.core.messages import MissingExtra, extra_hint
from riskmin.owners.client import OwnerConnection, OwnerUnavailable, checked_reply
from riskmin.owners.executor import OwnersExecutor
from riskmin.owners.server import TlsFiles
from riskmin.owners.wire.codec import OwnerMessage, decode, encode

RECORD, FIELD = "riskmin", "data"
"""Where the bytes of a message are in the records of Flower."""
SETTINGS = ("owner", "address", "ca", "cert", "key")
"""Entries of a SuperNode's --node-config: the owner's service, and files to connect to it."""


def import_flower() -> tuple[Any, Any, Any]:
    """Return the modules flwr.app, flwr.clientapp and flwr.serverapp; raise an ImportError with the extra."""
    try:
        from flwr import app, clientapp, serverapp
    except ImportError:
        raise MissingExtra(f"Flower is not installed: {extra_hint('federated')}") from None
    return app, clientapp, serverapp


def make_client_app() -> Any:
    """Return the `ClientApp` of an owner, which passes requests on to the owner's service.

    The SuperNode's configuration names the service and the files to connect to it:
    ``--node-config 'owner="hospital-a" address="127.0.0.1:7001" ca="ca.pem" cert="me.pem" key="me.key"'``.
    The name in that certificate is the coordinator's name in the owner's policy, log and budgets.

    Returns
    -------
    flwr.clientapp.ClientApp
    """
    flower, clientapp, _ = import_flower()
    client = clientapp.ClientApp()

    @client.query()  # type: ignore[untyped-decorator]
    def answer(message: Any, context: Any) -> Any:
        settings = context.node_config
        if missing := [name for name in SETTINGS if name not in settings]:
            raise ValueError(f"--node-config has no {missing[0]}: give {', '.join(SETTINGS)}")
        files = TlsFiles(*(str(settings[name]) for name in ("ca", "cert", "key")))
        connection = OwnerConnection(str(settings["owner"]), str(settings["address"]), files)
        try:
            reply = connection.send(message.content[RECORD][FIELD], reply_is_long=True)()
        finally:
            connection.close()
        return flower.Message(_content(flower, reply), reply_to=message)

    return client


def make_server_app(work: Callable[[OwnersExecutor], Any], n_owners: int, patience: float = 600.0) -> Any:
    """Return the `ServerApp` of the coordinator, which waits for the owners and then does some work.

    Parameters
    ----------
    work : callable
        A function of the `OwnersExecutor`: to fit a model and save it, for example.
    n_owners : int
        The number of SuperNodes to wait for.
    patience : float
        Seconds for which the SuperNodes are waited for, and each answer of one.

    Returns
    -------
    flwr.serverapp.ServerApp
    """
    _, _, serverapp = import_flower()
    server = serverapp.ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        work(connect_grid(grid, n_owners, patience))

    return server


def connect_grid(grid: Any, n_owners: int, patience: float = 600.0) -> OwnersExecutor:
    """Return an executor over the SuperNodes of a grid, in the order of the owners' names."""
    deadline = time.monotonic() + patience
    while len(nodes := list(grid.get_node_ids())) < n_owners:
        if time.monotonic() > deadline:
            raise OwnerUnavailable(
                f"{len(nodes)} of {n_owners} SuperNodes are connected after {patience:g} seconds: "
                "start the others, and repeat the run"
            )
        time.sleep(0.2)
    connections = [FlowerConnection(grid, node, patience) for node in nodes]
    waiting = [connection.start(OwnerMessage("describe")) for connection in connections]
    for connection, wait in zip(connections, waiting, strict=True):
        connection.name = str(wait().fields["name"])
    return OwnersExecutor.from_connections(sorted(connections, key=lambda connection: connection.name))


class FlowerConnection:
    """A connection to the owner behind one SuperNode, as `OwnerConnection` is one by gRPC.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    node : int
        The SuperNode's number.
    patience : float
        Seconds for which an owner that does not answer is asked again.
    """

    INTERVAL = 0.02
    """Seconds between two questions to the SuperLink whether a reply has come."""

    def __init__(self, grid: Any, node: int, patience: float) -> None:
        self.grid, self.node, self.patience = grid, node, patience
        self.name, self.n_rounds = f"SuperNode {node}", 0

    def start(self, message: OwnerMessage, reply_is_long: bool = False) -> Callable[[], OwnerMessage]:
        """Send a request; the function that is returned waits for the reply."""
        data = encode(message)
        pending = self._push(data)
        return lambda: self._wait(pending, data)

    def ask(self, message: OwnerMessage) -> OwnerMessage:
        """Send a request and return the reply."""
        return self.start(message)()

    def close(self) -> None:
        """Do nothing: Flower closes the grid at the end of a run."""

    def _push(self, data: bytes) -> list[str]:
        flower, _, _ = import_flower()
        self.n_rounds += 1
        request = flower.Message(
            _content(flower, data), dst_node_id=self.node, message_type=flower.MessageType.QUERY
        )
        return list(self.grid.push_messages([request]))

    def _wait(self, pending: list[str], data: bytes) -> OwnerMessage:
        deadline = time.monotonic() + self.patience
        problem = "no reply"
        while time.monotonic() < deadline:
            for message in self.grid.pull_messages(pending):
                if not message.has_error():
                    reply = decode(message.content[RECORD][FIELD])
                    if reply.kind != "busy":
                        return checked_reply(self.name, reply)
                    problem = "requests come faster than it allows"
                else:
                    problem = str(message.error.reason)
                # the same bytes again: an owner that has answered them sends the same reply
                time.sleep(1.0)
                pending = self._push(data)
            time.sleep(self.INTERVAL)
        raise OwnerUnavailable(
            f"{self.name} has not answered for {self.patience:g} seconds ({problem}): start its SuperNode "
            "and its service again, and repeat the run to go on from the checkpoint"
        )


def _content(flower: Any, data: bytes) -> Any:
    """Return the records of a Flower message with the bytes of one of ours."""
    return flower.RecordDict({RECORD: flower.ConfigRecord({FIELD: data})})
