"""The experiments of the immunity-based routing paper.

The modules, in reading order:

    experiments   the paper's figures
    graphs        communities, and a plane with delays
"""

from tidings.lab.immune import experiments, graphs

EXPERIMENTS = (*experiments.EXPERIMENTS, graphs.EXPERIMENT)

__all__ = ["EXPERIMENTS"]
