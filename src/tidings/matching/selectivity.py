"""How likely events fall into which cells: a guess that decides speed, never answers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidings.events import EventType
from tidings.matching.axes import Axes
from tidings.matching.box_table import Array

NULL_SHARE = 0.02  # Of events that lack an attribute somebody asks for, as long as nobody has shown any.
GAP_WEIGHT = 0.1  # A text between two that conditions mention, against one that they do.
SAMPLE_WEIGHT = 0.9  # How much a sample counts; the rest is for cells that it happens not to touch.


def shares(axes: Axes, event_type: EventType, sample: pa.Table | None = None) -> tuple[Array, Array]:
    """Where each axis starts in the second array, and there, per cell, the part of events in cells below it.

    Without a sample each cell is as likely as any other, since conditions tend to be written
    where events are. Texts that are asked for by name are likelier than those in between.
    """
    located = axes.locate(sample, event_type) if sample is not None and sample.num_rows else None
    each = [np.zeros(0, np.float32)]
    for index, cells in enumerate(axes.cell_counts.tolist()):
        weight = _guess(axes, index, cells)
        if located is not None:
            seen = np.bincount(located[index], minlength=cells) / located.shape[1]
            weight = SAMPLE_WEIGHT * seen + (1 - SAMPLE_WEIGHT) * weight
        each.append(np.concatenate([[0], np.cumsum(weight)]).astype(np.float32))
    ends = np.cumsum([len(share) for share in each])
    return ends[:-1].astype(np.int64), np.concatenate(each)


def _guess(axes: Axes, index: int, cells: int) -> Array:
    weight = np.ones(cells)
    if axes.is_text(index):
        weight[2:][~axes.points(index)] = GAP_WEIGHT
        weight[1] = GAP_WEIGHT
    weight[0] = 0
    weight *= (1 - NULL_SHARE) / weight.sum()
    weight[0] = NULL_SHARE
    return weight
