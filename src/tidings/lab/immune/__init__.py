"""The experiments of the immunity-based routing paper.

The modules, in reading order:

    experiments   the paper's figures
    graphs        communities, and a plane with delays
    mobile        brokers that move
"""

from tidings.lab.immune import experiments, graphs, mobile

EXPERIMENTS = (*experiments.EXPERIMENTS, graphs.EXPERIMENT, mobile.EXPERIMENT)

__all__ = ["EXPERIMENTS"]
