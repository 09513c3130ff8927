"""Papers to figures: experiments as data, run on Spark, stored as Parquet, drawn, and judged.

`find` gives experiments by name and `run` carries them out. There is one module for each
paper; what an experiment is stands in `experiment`, how a sweep runs and resumes in
`sweep`, what may be asked of results in `results`.
"""

from tidings.lab.catalogue import EXPERIMENTS, find
from tidings.lab.experiment import Axis, Claim, Experiment, Measured, Parameters, Point
from tidings.lab.report import Judgement, Report, report, run
from tidings.lab.results import Finding, NotMeasured, Results, Verdict
from tidings.lab.sweep import LOCAL, Progress

__all__ = [
    "EXPERIMENTS",
    "LOCAL",
    "Axis",
    "Claim",
    "Experiment",
    "Finding",
    "Judgement",
    "Measured",
    "NotMeasured",
    "Parameters",
    "Point",
    "Progress",
    "Report",
    "Results",
    "Verdict",
    "find",
    "report",
    "run",
]
