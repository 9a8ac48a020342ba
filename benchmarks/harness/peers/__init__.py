"""The peers: one small adapter each, left out where its package is missing."""

from benchmarks.harness.peers import glms, liblinear, others, rehline, scikit, sparse
from benchmarks.harness.peers.base import Peer as Peer
from benchmarks.harness.peers.base import Rung as Rung

PEERS = {
    peer.name: peer for module in (scikit, liblinear, rehline, sparse, glms, others) for peer in module.PEERS
}
