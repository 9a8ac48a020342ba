"""Solvers of other packages: one small adapter each, skipped if its package is not installed."""

from benchmarks.harness.peers import glms, liblinear, others, rehline, scikit, sparse
from benchmarks.harness.peers.base import Peer as Peer
from benchmarks.harness.peers.base import Rung as Rung

PEERS = {
    peer.name: peer for module in (scikit, liblinear, rehline, sparse, glms, others) for peer in module.PEERS
}
