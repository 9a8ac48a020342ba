"""Replies of an owner that lies, peers that take up an owner's service, and its log."""

import json
import resource
import signal
import socket
import threading

import grpc
import numpy as np
import pytest
from tests.owners.conftest import Local, owner_of, split, table, tls_files

from riskmin import L2, minimize
from riskmin.cli import main
from riskmin.owners.client import OwnerConnection
from riskmin.owners.executor import OwnersExecutor
from riskmin.owners.owner import Owner
from riskmin.owners.protection.audit import AuditError, AuditLog, chain_key, missing_heads, read_log
from riskmin.owners.protection.policy import Policy
from riskmin.owners.server import SERVICE
from riskmin.owners.wire.codec import OwnerMessage, decode, encode

VALUES = (None, True, -1, 2**70, 1e308, "x", [], [1, "a"], {"a": 1})


def run(alter=None):
    """Two iterations with an honest owner and one whose replies are altered: its replies before that."""
    parts = split(*table(300, 2)[:2])
    connections = [Local(owner_of(parts, "north")), Local(owner_of(parts, "south"), alter)]
    owners = OwnersExecutor.from_connections(connections)
    minimize(owners.objective(owners.risk("logistic"), L2(), 1e-2), max_iter=2)
    return connections[1].replies


def alterations(replies):
    """Every field and array of the first reply of each kind, replaced, removed or changed in shape."""
    seen = set()
    for n, reply in enumerate(replies):
        kind, fields, arrays = reply.kind, reply.fields, reply.arrays
        names = (tuple(fields), tuple(arrays), fields.get("layout"))
        if names in seen:
            continue
        seen.add(names)
        yield n, OwnerMessage("nonsense", fields, arrays)
        for name in fields:
            yield n, OwnerMessage(kind, {k: v for k, v in fields.items() if k != name}, arrays)
            for value in VALUES:
                yield n, OwnerMessage(kind, {**fields, name: value}, arrays)
        for name, a in arrays.items():
            yield n, OwnerMessage(kind, fields, {k: v for k, v in arrays.items() if k != name})
            for other in (a[:-1], np.append(a, 1.0), np.full_like(a, np.nan), a.astype(np.int64), a[:, None]):
                yield n, OwnerMessage(kind, fields, {**arrays, name: other})


def test_an_altered_reply_is_believed_or_refused_in_a_sentence_that_names_the_owner():
    reasons = []
    for n, altered in alterations(run()):
        try:
            run(lambda k, reply, n=n, altered=altered: altered if k == n else reply)
        except ValueError as error:  # other errors are tracebacks for the user
            reasons.append(str(error))
    assert len(reasons) > 120
    assert [reason for reason in reasons if "\n" in reason or "south" not in reason] == []


# ---------------------------------------------------------------- peers that take up the service
@pytest.fixture
def many_files():
    """Allow this process 4000 open files, or skip the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4000:
        pytest.skip(f"1100 connections need more open files than the limit of {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_streams_and_bare_connections_of_one_peer_do_not_stop_another(serve, certificates, many_files):
    X, y, _ = table(600)
    owners = serve({"north": {"X": X, "y": y}})
    address = owners.addresses[0][1]
    host, port = address.split(":")
    stranger = OwnerConnection("north", address, tls_files(certificates, "stranger"))
    done = threading.Event()

    def nothing():
        done.wait(60)
        yield b""

    credentials = grpc.ssl_channel_credentials(stranger.tls.ca, stranger.tls.key, stranger.tls.cert)
    options = [("grpc.ssl_target_name_override", "north")]
    channel = grpc.secure_channel(address, credentials, options)
    idle = [channel.stream_stream(f"/{SERVICE}/Stream")(nothing(), timeout=30) for _ in range(8)]
    bare = [socket.create_connection((host, int(port))) for _ in range(1100)]
    try:
        other = OwnerConnection("north", address, tls_files(certificates, "coordinator"), patience=10.0)
        assert other.ask(OwnerMessage("describe")).fields["rows"] == 600
        other.close()
    finally:
        done.set()
        for connection in bare:
            connection.close()
        for call in idle:
            call.cancel()
        channel.close()
        stranger.close()


# ---------------------------------------------------------------- the log
@pytest.mark.parametrize("key", [None, chain_key(b"private")], ids=["plain", "keyed"])
def test_a_changed_log_is_noticed(tmp_path, key):
    path = tmp_path / "log"
    entry = {"who": "alice", "what": "pull_back", "decision": "answered"}
    log = AuditLog(path, key)
    for k in range(5):
        log.append(**entry, value=1.0 / (k + 1))
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    kept = list(read_log(path, key))
    assert len(kept) == 5
    twice = lines[0].replace(b'"who": "alice"', b'"who": "mallory", "who": "alice"')
    other = lines[0].replace(b"alice", b"carol")
    for changed in (lines[:2] + lines[3:], [other, *lines[1:]], lines[::-1], [twice, *lines[1:]]):
        path.write_bytes(b"".join(changed))
        with pytest.raises(AuditError, match=r"line [123]"):
            list(read_log(path, key))
    # a process that was killed while it wrote a line goes on after the last whole one, and records that
    path.write_bytes(b"".join(lines) + b'{"n": 6, "ti')
    log = AuditLog(path, key)
    log.append(**entry)
    log.close()
    assert [e["decision"] for e in read_log(path, key)][-2:] == ["repaired", "answered"]
    # without the key: the lines but one, in a chain that anyone can compute
    path.unlink()
    forged = AuditLog(path)
    for line in kept[:2] + kept[3:]:
        forged.append(**{k: v for k, v in line.items() if k not in ("n", "time", "hash", "keyed")})
    forged.close()
    with pytest.raises(AuditError, match="not keyed"):
        list(read_log(path, chain_key(b"private")))


def test_lines_that_are_cut_off_are_missed_by_the_other_owners(tmp_path, certificates, capsys):
    X, y, _ = table(600)
    logs = {name: tmp_path / f"{name}.audit.jsonl" for name in ("north", "south")}
    keys = {name: (certificates / f"{name}.key").read_bytes() for name in logs}
    parts = {name: part for name, part in split(X, y).items() if name in logs}
    opened = {name: AuditLog(logs[name], chain_key(keys[name])) for name in logs}
    connections = [Local(Owner(**part, name=name, log=opened[name])) for name, part in parts.items()]
    for _ in range(2):  # the second coordinator is told the heads after the first run
        owners = OwnersExecutor.from_connections(connections)
        minimize(owners.objective(owners.risk("logistic"), L2(), 1e-2), tol=0.1)
    for log in opened.values():
        log.close()
    arguments = ["audit", "log", str(logs["north"]), "--key", str(certificates / "north.key")]
    arguments += ["--against", str(logs["south"])]
    assert main(arguments) == 0
    lines = logs["north"].read_bytes().splitlines(keepends=True)
    logs["north"].write_bytes(b"".join(lines[:3]))
    other = [json.loads(line) for line in logs["south"].read_bytes().splitlines()]
    assert missing_heads("north", list(read_log(logs["north"], chain_key(keys["north"]))), other)
    assert main(arguments) == 1
    assert "lacks line" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_gives_no_answer(tmp_path):
    X, y, _ = table(400)
    log = AuditLog(tmp_path / "log")
    owner, describe = Owner(X, y, log=log), encode(OwnerMessage("describe"))
    assert decode(owner.handle("alice", describe)).kind == "answer"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "log").stat().st_size
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        reply = decode(owner.handle("alice", describe))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert reply.kind == "refused"
    assert "cannot be written" in reply.fields["reason"]
    # no torn line is left, and the owner answers again
    assert decode(owner.handle("alice", describe)).kind == "answer"
    log.close()
    assert [entry["decision"] for entry in read_log(tmp_path / "log")] == ["answered", "answered"]


def test_unlisted_names_do_not_fill_the_log():
    X, y, _ = table(400)
    owner = Owner(X, y, policy=Policy(coordinators=("alice",), requests_per_second=1e9))
    for _ in range(1100):
        assert decode(owner.handle("mallory", encode(OwnerMessage("describe")))).kind == "refused"
    assert len(owner.log.entries) < 20
    assert owner.log.entries[-1]["count"] == 1024
