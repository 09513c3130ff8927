"""The papers' experiments as data: run on Spark, stored as Parquet, drawn, and judged against the papers' claims.

`find` returns experiments by name, `run` carries them out:

    Experiment ──points──▶ sweep (Spark) ──▶ results.parquet ──▶ figures and claims.json

In reading order:

    experiment         what an experiment, a point and a claim are
    parameter_checks   whether parameters make sense
    catalogue          all experiments, by name
    sweep              all points as one Spark job, which can be interrupted and resumed
    results            the table of results, and what figures and claims ask of it
    figures            one figure per experiment
    report             from a sweep to results, figures and verdicts
    fork               trials in forked copies of a simulated network
    scale              worlds of up to a hundred thousand nodes, for several papers
    comparison         the same workload over every overlay, and a recommendation
    cbdlo, hermes, immune, irbr, secure, spanhop   the experiments of each paper
"""

from tidings.lab.catalogue import EXPERIMENTS, find
from tidings.lab.comparison import SCENARIOS, ComparedWorkload, OverlayCost, Recommendation, compare, recommend
from tidings.lab.experiment import Claim, Experiment, Measured, Parameters, PlotAxis, Point
from tidings.lab.report import Judgement, Report, report, run
from tidings.lab.results import Finding, NotMeasured, Results, Verdict
from tidings.lab.sweep import LOCAL, Progress

Axis = PlotAxis  # Its name in 0.1.

__all__ = [
    "EXPERIMENTS",
    "LOCAL",
    "SCENARIOS",
    "Axis",
    "Claim",
    "ComparedWorkload",
    "Experiment",
    "Finding",
    "Judgement",
    "Measured",
    "NotMeasured",
    "OverlayCost",
    "Parameters",
    "PlotAxis",
    "Point",
    "Progress",
    "Recommendation",
    "Report",
    "Results",
    "Verdict",
    "compare",
    "find",
    "recommend",
    "report",
    "run",
]
