"""`riskmin owners` and `riskmin serve`: files for a group of data owners, and the service of one of them."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.inputs import PATH_TYPE, ColumnRef, check_data_options, qid_option, target_option
from riskmin.data import load


@click.group()
def owners() -> None:
    """Set up a group of data owners, who fit a model together and share no rows."""


@click.option(
    "--owner", "names", multiple=True, required=True, metavar="NAME=HOST:PORT", help="An owner; repeat."
)
@click.option("--coordinator", default="coordinator", show_default=True, help="Name of the coordinator.")
@click.argument("folder", type=PATH_TYPE)
def _init(folder: Path, names: tuple[str, ...], coordinator: str) -> int:
    """Make a test authority, certificates, owners.toml and policy.toml in FOLDER.

    All keys are made in one place, which is for tests and for groups that trust who runs this: otherwise each
    party makes its own key, and has its certificate signed.
    """
    from riskmin.owners.wire.certificates import make_authority

    parts = [text.partition("=") for text in names]
    if wrong := [text for text, (_, _, at) in zip(names, parts, strict=True) if ":" not in at]:
        raise ValueError(f"--owner {wrong[0]}: write NAME=HOST:PORT, such as hospital-a=127.0.0.1:7001")
    hosts = sorted({at.rpartition(":")[0] for _, _, at in parts})
    for name in ("owners.toml", "policy.toml"):
        if (folder / name).exists():
            raise ValueError(f"{folder / name} exists: choose another folder, or remove it")
    make_authority(folder, [name for name, _, _ in parts] + [coordinator], hosts)
    lines = ['ca = "ca.pem"', f'cert = "{coordinator}.pem"', f'key = "{coordinator}.key"', "patience = 60.0"]
    for name, _, at in parts:
        lines += ["", "[[owners]]", f'name = "{name}"', f'address = "{at}"']
    (folder / "owners.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    policy = f'# all entries: docs/owners.md\ncoordinators = ["{coordinator}"]\nmin_rows = 5\ndigits = 9\n'
    (folder / "policy.toml").write_text(policy, encoding="utf-8")
    click.echo(
        f"{folder}: ca.pem, owners.toml, policy.toml, and a certificate and key for each of {len(parts) + 1}"
    )
    return 0


owners.command("init")(_init)


@click.command()
@click.argument("data", type=PATH_TYPE)
@click.option("--name", required=True, help="Name of the owner, that of its certificate.")
@click.option("--ca", type=PATH_TYPE, required=True, help="Certificate file of the authority.")
@click.option("--cert", type=PATH_TYPE, required=True, help="Certificate file of the owner.")
@click.option("--key", type=PATH_TYPE, required=True, help="Key file of the certificate.")
@click.option("--policy", type=PATH_TYPE, help="TOML file of what is allowed (default: all protections on).")
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="HOST:PORT; port 0 for a free one.")
@click.option("--log", type=PATH_TYPE, help="File of the audit log (default: NAME.audit.jsonl).")
@click.option("--weights", type=PATH_TYPE, help="Weights of the rows, a .npy file.")
@click.option("--allow", multiple=True, metavar="NAME", help="Answer a coordinator again that was ended.")
@target_option
@qid_option
def serve(data: Path, name: str, target: ColumnRef, qid: ColumnRef, listen: str, **given: Any) -> int:
    """Answer requests about the rows of DATA, by sums over rows only, until Ctrl-C or SIGTERM.

    Clients need a certificate of the same authority. Rows, labels and scores are never sent. The policy
    limits what is answered, and each request is recorded in the audit log.
    """
    from riskmin.owners.owner import Owner
    from riskmin.owners.protection.audit import AuditLog
    from riskmin.owners.protection.policy import Policy
    from riskmin.owners.server import OwnerServer, TlsFiles, serve_forever

    tls = TlsFiles(given["ca"], given["cert"], given["key"])
    policy = Policy() if given["policy"] is None else Policy.from_file(given["policy"])
    check_data_options(data, target=target, qid=qid)
    table = load(data, target=target, qid=qid, require_labels=False)
    owner = Owner(
        table.X,
        table.y,
        table.qid,
        None if given["weights"] is None else np.load(given["weights"], allow_pickle=False),
        name=name,
        feature_names=table.feature_names,
        policy=policy,
        log=AuditLog(given["log"] or Path(f"{name}.audit.jsonl")),
        # only who has the key can compute the fingerprint of guessed rows
        secret=hashlib.sha256(tls.key).digest(),
        identity=tls,
    )
    for who in given["allow"]:
        owner.allow(who)
    server = OwnerServer(owner, tls, listen)
    host = listen.rpartition(":")[0]
    n, p = owner.matrix.shape
    click.echo(f"{name}: {n:,} rows x {p:,} columns at {host}:{server.port}")
    sys.stdout.flush()
    serve_forever(server)
    return 0
