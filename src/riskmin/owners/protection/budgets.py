"""Budgets of coordinators, counted from the owner's log, so that a restart does not reset them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

from riskmin.owners.protection.audit import AuditLog
from riskmin.owners.protection.noise import PrivacyAccount
from riskmin.owners.protection.policy import AnswerRefused, Policy


class Budgets:
    """What each coordinator has used today, who is answered no more, and how fast requests come.

    Parameters
    ----------
    name : str
        That of the owner, for messages.
    policy : Policy
    log : AuditLog
    """

    MAX_REFUSALS = 1000
    """Kinds of refusals, by peer, request and decision, that are counted apart."""

    def __init__(self, name: str, policy: Policy, log: AuditLog) -> None:
        self.name, self.policy, self.log = name, policy, log
        self._bucket: dict[str, tuple[float, float]] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.runs: Counter[tuple[str, str]] = Counter()
        self.losses: dict[tuple[str, str], set[str]] = {}
        self.ended: set[str] = set()
        self.accounts: dict[str, PrivacyAccount] = {}
        self.refusals: Counter[tuple[str, str, str]] = Counter()
        for entry in log.read():
            self._count(entry)

    def _count(self, entry: dict[str, Any]) -> None:
        who, day = entry.get("who", ""), (entry.get("who", ""), entry["time"][:10])
        if entry["what"] == "allow":
            self.ended.discard(who)
        if entry["decision"] == "ended":
            self.ended.add(who)
        if "mu_squared" in entry:
            self.account(who).mu_squared = max(self.account(who).mu_squared, entry["mu_squared"])
        self.requests[day] += 1
        if entry["what"] == "open" and entry["decision"] == "answered":
            self.runs[day] += 1
            self.losses.setdefault(day, set()).add(entry.get("loss", ""))

    def account(self, who: str) -> PrivacyAccount:
        """Return the account of a coordinator; that of an owner without noise is not charged."""
        if who not in self.accounts:
            policy = (
                self.policy
                if self.policy.noise_multiplier
                else replace(self.policy, noise_multiplier=1.0, max_row_norm=1.0)
            )
            self.accounts[who] = PrivacyAccount(policy)
        return self.accounts[who]

    def record(self, who: str, what: str, decision: str, **more: Any) -> None:
        """Append an entry to the log, and count it."""
        known = {name: value for name, value in more.items() if value is not None}
        self._count(self.log.append(who=who, what=what, decision=decision, **known))

    def record_refusal(self, who: str, what: str, decision: str, reason: str) -> None:
        """Count a request that was not answered; of equal ones, the 1st, 2nd, 4th, 8th, ... are recorded."""
        key = who, what, decision
        if key not in self.refusals and len(self.refusals) >= self.MAX_REFUSALS:
            key = "", "", ""  # names beyond these are counted together
        self.refusals[key] += 1
        count = self.refusals[key]
        if count & (count - 1) == 0:
            more = {"count": count} if count > 1 else {}
            self.record(who, what, decision, reason=reason, **more)
        else:
            self.requests[who, time.strftime("%Y-%m-%d", time.gmtime())] += 1

    def check(self, peer: str, kind: str, loss: str = "") -> None:
        """Raise `AnswerRefused` if a coordinator is not allowed, or has used up a budget."""
        day = peer, time.strftime("%Y-%m-%d", time.gmtime())
        policy = self.policy
        if policy.coordinators and peer not in policy.coordinators:
            raise AnswerRefused(f"{peer} is not among the coordinators of the policy")
        if peer in self.ended:
            raise AnswerRefused(
                f"{self.name} answers {peer} no more, since a protection ended its service", final=True
            )
        if self.requests[day] >= policy.requests_per_day:
            raise AnswerRefused(f"the budget of {policy.requests_per_day:,} requests a day is used up")
        if kind != "open":
            return
        if self.runs[day] >= policy.runs_per_day:
            raise AnswerRefused(f"the budget of {policy.runs_per_day} runs a day is used up")
        known = self.losses.get(day, set())
        if loss not in known and len(known) >= policy.losses_per_day:
            raise AnswerRefused(f"the budget of {policy.losses_per_day} different losses a day is used up")

    def over_rate(self, peer: str) -> bool:
        """Whether requests of a peer come faster than the policy allows: a token bucket of one second."""
        rate, now = self.policy.requests_per_second, time.monotonic()
        tokens, last = self._bucket.get(peer, (rate, now))
        tokens = min(rate, tokens + (now - last) * rate)
        over = tokens < 1
        # one line for a flood, which must not fill the disk
        if over and (self.log.last_entry is None or self.log.last_entry["what"] != "flood"):
            self.record(peer, "flood", "refused")
        self._bucket[peer] = (tokens if over else tokens - 1), now
        return over
