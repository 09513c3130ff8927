"""The experiments of the IRBR paper, and on what other networks its ranges work.

experiments      figures 4(a) and 4(b) against Scribe, on Pastry and on Tapestry, by whole simulated networks
other_networks   Kademlia's buckets and Chord's fingers as ranges, by a model
"""

from tidings.lab.irbr import experiments, other_networks

EXPERIMENTS = (*experiments.EXPERIMENTS, *other_networks.EXPERIMENTS)

__all__ = ["EXPERIMENTS"]
