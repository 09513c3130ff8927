"""Pipelines of `tidings run`: batches, quarantine and deliveries, from the files that a run keeps; nothing is claimed.

A pipeline is named by its file, and read with the rights that the console's own process has on its folders. Those on
object stores need Spark to be read, and are named without numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidings.errors import InputError, TidingsError

BATCHES_SHOWN = 60
ROWS_SHOWN = 50
ROWS_SCANNED = 20_000  # Of one subscriber, to show the newest of.
RECENT_BATCHES = 20  # Whose deliveries are counted by subscriber.
ORIGINAL_CHARACTERS_MAX = 2000


def overview(files: list[Path]) -> list[dict[str, Any]]:
    """Each pipeline, in the order of the command line; one that cannot be read says why."""
    rows = []
    for number, file in enumerate(files):
        try:
            rows.append({"number": number, "file": str(file), **_summary(file)})
        except TidingsError as wrong:
            rows.append({"number": number, "file": str(file), "name": file.stem, "problem": str(wrong)})
    return rows


def details(files: list[Path], number: int) -> dict[str, Any]:
    """One pipeline: its last batches, its quarantine, and recent deliveries by subscriber."""
    from tidings.pipeline import read_pipeline

    if not 0 <= number < len(files):
        raise InputError(f"there are {len(files)} pipelines here, named with --pipeline")
    pipeline = read_pipeline(files[number])
    batches = _batches(pipeline.checkpoint)
    return {
        **_summary(files[number]),
        "subscription": pipeline.events.subscription,
        "batches": batches,
        "events": _quarantined(f"{pipeline.quarantine.path}/events"),
        "subscriptions": _quarantined(f"{pipeline.quarantine.path}/subscriptions"),
        "subscribers": _by_subscriber(pipeline.deliveries.path or "", batches),
    }


def delivered(files: list[Path], number: int, subscriber: str) -> list[dict[str, Any]]:
    """Deliveries to one subscriber, from the newest batches that have any; long texts are cut."""
    import pyarrow.compute as pc

    from tidings.pipeline import read_deliveries, read_pipeline

    if not 0 <= number < len(files):
        raise InputError(f"there are {len(files)} pipelines here, named with --pipeline")
    pipeline = read_pipeline(files[number])
    if "://" in (pipeline.deliveries.path or "://"):
        return []
    batches = _batches(pipeline.checkpoint)
    if not batches:
        return []
    try:
        kept = read_deliveries(pipeline.deliveries.path or "")
        recent = pc.field("batch") > batches[0]["batch"] - RECENT_BATCHES
        found = kept.scanner(filter=recent & (pc.field("subscriber") == subscriber)).head(ROWS_SCANNED)
    except InputError:
        return []  # Not files.
    rows = found.sort_by([("batch", "descending")]).slice(0, ROWS_SHOWN).to_pylist()
    return [{name: _text(value) for name, value in row.items() if value is not None} for row in rows]


def _summary(file: Path) -> dict[str, Any]:
    from tidings.pipeline import BatchRecords, read_pipeline, storage_at

    pipeline = read_pipeline(file)
    if "://" in pipeline.checkpoint:
        raise InputError(f"its checkpoint is at {pipeline.checkpoint}; the console reads local folders")
    counts = BatchRecords(storage_at(pipeline.checkpoint)).totals()
    return {
        "name": pipeline.name,
        "events_from": pipeline.events.format,
        "deliveries_to": pipeline.deliveries.format,
        "counts": {field: getattr(counts, field) for field in counts.__struct_fields__},
    }


def _batches(checkpoint: str) -> list[dict[str, Any]]:
    """The last batches, newest first, with when they were done."""
    from tidings.pipeline import BatchRecords, storage_at

    records, folder = BatchRecords(storage_at(checkpoint)), Path(checkpoint, "batches")
    numbers = sorted((int(file.stem) for file in folder.glob("*.json") if file.stem.isdecimal()), reverse=True)
    rows = []
    for number in numbers[:BATCHES_SHOWN]:
        if (entry := records[number]) is None:
            continue
        done, counts = folder / f"{number:09}.done", entry.counts
        rows.append(
            {
                "batch": number,
                "version": entry.version,
                "done_ms": int(done.stat().st_mtime * 1000) if done.exists() else None,
                "counts": {field: getattr(counts, field) for field in counts.__struct_fields__} if counts else None,
            }
        )
    return rows


def _quarantined(folder: str) -> list[dict[str, Any]]:
    """Records that could not be used: why, and the original bytes, as text as far as they are any."""
    from tidings.pipeline import read_deliveries

    try:
        rows = read_deliveries(folder).head(ROWS_SHOWN).to_pylist()
    except InputError:
        return []  # The run has not got as far as this folder.
    return [{"reason": str(row.get("reason", "")), "original": _text(row.get("original"))} for row in rows]


def _text(original: Any) -> str:
    text = original.decode("utf-8", "backslashreplace") if isinstance(original, bytes) else str(original)
    return text if len(text) <= ORIGINAL_CHARACTERS_MAX else text[:ORIGINAL_CHARACTERS_MAX] + "…"


def _by_subscriber(folder: str, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many deliveries each subscriber has in the last batches, the most first."""
    import pyarrow.compute as pc

    from tidings.pipeline import read_deliveries

    if not batches or not folder or "://" in folder:
        return []
    try:
        recent = pc.field("batch") > batches[0]["batch"] - RECENT_BATCHES
        found = read_deliveries(folder).to_table(columns=["subscriber"], filter=recent)
    except InputError:
        return []  # Not files.
    counted = (
        found.group_by("subscriber").aggregate([("subscriber", "count")]).sort_by([("subscriber_count", "descending")])
    )
    return [
        {"subscriber": row["subscriber"], "deliveries": row["subscriber_count"]}
        for row in counted.slice(0, ROWS_SHOWN).to_pylist()
    ]
