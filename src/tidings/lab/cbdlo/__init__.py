"""The experiments of the CBDLO paper.

The modules, in reading order:

    scene         a model of the network at rest, for hundreds of thousands of nodes
    walks         CRAWL compiled, for a hundred thousand walks at once
    model         the cost by formula, for networks that cannot be simulated
    measures      what the experiments measure: on scenes, by formula, or on the protocol itself
    hotspots      the busiest node of a popular attribute, and where walks meet
    claims        the paper's claims, and ours beyond it, judged by the measurements
    experiments   the figures, as data
"""

from tidings.lab.cbdlo import experiments
from tidings.lab.scale import scale_experiment

EXPERIMENTS = (
    *experiments.EXPERIMENTS,
    scale_experiment("cbdlo", (1_000, 10_000, 100_000), seconds=lambda nodes: 1.5 + 7e-4 * nodes),
)

__all__ = ["EXPERIMENTS"]
