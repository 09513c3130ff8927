"""The experiments of the Spanhop paper: hops, failures and delays, on networks of up to a million brokers.

The modules, in reading order:

    split_tree            the K-D tree of a whole network, as arrays
    routing               greedy routing and Spanhop over it, the protocol's own steps compiled
    network_coordinates   GNP for thousands of brokers at once
    proximity             MGNP's look-up for all brokers at once
    measures              what one run measures
    experiments           the experiments and the claims about them
"""

from tidings.lab.spanhop.experiments import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
