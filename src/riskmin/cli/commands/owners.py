"""`riskmin owners`, `serve` and `audit`: files for a group of data owners, the service of one, its log."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.inputs import PATH_TYPE, ColumnRef, check_data_options, qid_option, target_option
from riskmin.cli.output import print_pairs, print_table
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
    policy = (
        f'# all entries: docs/owners.md\ncoordinators = ["{coordinator}"]\nmax_leverage = 0.75\ndigits = 9\n'
    )
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
    limits what is answered, and each answer is recorded in the audit log before it is sent.
    """
    from riskmin.owners.owner import Owner
    from riskmin.owners.protection.audit import AuditLog, chain_key
    from riskmin.owners.protection.policy import Policy
    from riskmin.owners.server import OwnerServer, TlsFiles, serve_forever

    tls = TlsFiles(given["ca"], given["cert"], given["key"])
    policy = Policy() if given["policy"] is None else Policy.from_file(given["policy"])
    check_data_options(data, target=target, qid=qid)
    table = load(data, target=target, qid=qid, require_labels=False)
    log = AuditLog(given["log"] or Path(f"{name}.audit.jsonl"), chain_key(tls.key))
    if log.last_entry is not None and log.last_entry["decision"] == "repaired":
        click.echo(f"{name}: {log.path}: {log.last_entry['reason']}", err=True)
    owner = Owner(
        table.X,
        table.y,
        table.qid,
        None if given["weights"] is None else np.load(given["weights"], allow_pickle=False),
        name=name,
        feature_names=table.feature_names,
        policy=policy,
        log=log,
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


# ---------------------------------------------------------------- the log
@click.group()
def audit() -> None:
    """Read what an owner was asked, and what it answered."""


@click.argument("log", type=PATH_TYPE)
@click.option("--run", help="Requests of one run only, by the first digits of its number.")
@click.option(
    "--last", type=click.IntRange(1), default=20, show_default=True, help="How many requests to list."
)
@click.option("--key", type=PATH_TYPE, help="Key file of the owner that wrote LOG, to verify its chain.")
@click.option("--name", help="Name of that owner (default: LOG up to its first dot).")
@click.option("--against", type=PATH_TYPE, help="Log of another owner, which has seen the heads of this one.")
@click.option("-o", "--output", type=PATH_TYPE, help="HTML page with the objective over time.")
@click.option("--json", "as_json", is_flag=True, help="Print all entries as JSON lines.")
def _log(log: Path, run: str | None, last: int, output: Path | None, as_json: bool, **given: Any) -> int:
    """Verify the chain of hashes of LOG, and list its requests with a picture of the objective.

    Exit code 1 if a line was changed or removed. Lines cut off at the end, or a chain that was written again
    with the owner's key, are noticed by --against: owners exchange the heads of their logs.
    """
    from riskmin.owners.protection.audit import AuditError, chain_key, missing_heads, read_log

    try:
        key = b"" if given["key"] is None else chain_key(given["key"].read_bytes())
        entries = list(read_log(log, key))
        if given["against"] is not None:
            # the chain of the other log is verified by its own owner, who has its key
            other = [json.loads(line) for line in given["against"].read_bytes().splitlines()]
            name = given["name"] or log.name.partition(".")[0]
            if missing := missing_heads(name, entries, other):
                raise AuditError(
                    f"{log} lacks line {missing[0]} as {given['against']} has seen it: lines were removed or "
                    "written again, or the coordinator has passed on a wrong head"
                )
    except AuditError as error:
        click.secho(f"riskmin: {error}", fg="red", bold=True, err=True)
        return 1
    chosen = [e for e in entries if run is None or str(e.get("run", "")).startswith(run)]
    if as_json:
        for entry in chosen:
            click.echo(json.dumps(entry))
        return 0
    _summary(entries, chosen, last)
    if output is not None:
        _write_page(output, log.name, chosen)
    return 0


def _summary(entries: list[dict[str, Any]], chosen: list[dict[str, Any]], last: int) -> None:
    decisions = Counter(entry["decision"] for entry in chosen)
    runs = [entry for entry in chosen if entry["what"] == "open" and entry["decision"] == "answered"]
    values = [entry["value"] for entry in chosen if entry["what"] == "pull_back" and "value" in entry]
    print_pairs(
        [
            ("entries", f"{len(entries):,}, all in the chain of hashes"),
            ("last hash", entries[-1]["hash"] if entries else "none"),
            ("decisions", ", ".join(f"{n:,} {name}" for name, n in decisions.most_common()) or "none"),
            ("runs", f"{len(runs):,}"),
            (
                "objective",
                f"{sparkline(values)}  {values[0]:.4g} to {values[-1]:.4g}" if values else "not asked for",
            ),
        ]
    )
    rows = [["time", "who", "what", "decision", "norm of w", "objective", "reason"]]
    for e in chosen[-last:]:
        numbers = [f"{e[k]:.4g}" if isinstance(e.get(k), float) else "" for k in ("norm", "value")]
        rows.append([e["time"][:19], e["who"], e["what"], e["decision"], *numbers, e.get("reason", "")])
    print_table(rows, left=True)


def sparkline(values: list[float], width: int = 60) -> str:
    """Return a line of bars, one per value, or one per group of consecutive values.

    Examples
    --------
    >>> sparkline([1.0, 0.5, 0.25, 0.0])
    '█▅▃▁'
    """
    step = -(-len(values) // width)
    means = [sum(values[i : i + step]) / len(values[i : i + step]) for i in range(0, len(values), step)]
    lo, span = min(means), max(means) - min(means)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (v - lo) / span) if span else 0] for v in means)


def _write_page(output: Path, name: str, entries: list[dict[str, Any]]) -> None:
    """Write an HTML page with the claimed objective on the owner's rows over the requests."""
    from html import escape

    from riskmin.report.chart import ChartLine, draw_chart, linear_axis
    from riskmin.report.page import html_section, html_table, write_page

    points = [
        (float(k), e["value"]) for k, e in enumerate(entries) if e["what"] == "pull_back" and "value" in e
    ]
    charts = []
    if points:
        x = linear_axis(0.0, max(points[-1][0], 1.0), whole=True)
        y = linear_axis(min(v for _, v in points), max(v for _, v in points))
        title = "The claimed objective on the rows of this owner"
        charts = [draw_chart(title, x, y, [ChartLine("value", "objective", points)], label="request")]
    notable = [e for e in entries if e["decision"] != "answered" or e["what"] in ("open", "claim")]
    names = ("time", "who", "what", "decision", "reason")
    rows = [[escape(str(e.get(key, ""))) for key in names] for e in notable]
    lead = f"{len(entries):,} requests, of which those are listed that open a run or were not answered."
    write_page(output, name, lead, [*charts, html_section(html_table("Requests", names, rows))])


audit.command("log")(_log)
