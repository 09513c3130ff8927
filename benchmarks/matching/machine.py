"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("tidings", "numpy", "numba", "pyarrow", "duckdb", "polars", "chdb", "datafusion", "pyspark")


def facts() -> dict[str, Any]:
    """Processor, cores, memory, load and versions, for the head of every result file."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": _java_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _java_version() -> str | None:
    if shutil.which("java") is None:
        return None
    return subprocess.run(["java", "-version"], check=True, capture_output=True, text=True).stderr.splitlines()[0]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
