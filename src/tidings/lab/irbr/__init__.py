"""The experiments of the IRBR paper, and on what other networks its ranges work.

experiments      figures 4(a) and 4(b) against Scribe, on Pastry and on Tapestry, by whole simulated networks
other_networks   Kademlia's buckets and Chord's fingers as ranges, by a model
"""

from tidings.lab.irbr import experiments, other_networks
from tidings.lab.scale import scale_experiment

EXPERIMENTS = (
    *experiments.EXPERIMENTS,
    *other_networks.EXPERIMENTS,
    scale_experiment("irbr", (1_000, 10_000, 100_000), seconds=lambda nodes: 1.5 + 1.1e-3 * nodes),
)

__all__ = ["EXPERIMENTS"]
