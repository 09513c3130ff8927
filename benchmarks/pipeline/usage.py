"""What a program and everything it started have used: processor time and memory, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")

_TICKS = os.sysconf("SC_CLK_TCK")


def timed(work: Callable[[], Answer]) -> tuple[Answer, float]:
    began = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - began


def cpu_s() -> float:
    """Of this process and all below it, those that have ended included."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in _family()) / _TICKS


def forget_peaks() -> None:
    """From here on, `peaks_mb` tells what comes, not what has been."""
    for pid in _family():
        with suppress(OSError):  # It has just ended.
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peaks_mb(command: str = "") -> dict[str, int]:
    """The most memory that a single process of each program has had; those whose command line names `command` as that."""
    peaks: dict[str, int] = {}
    for pid in _family():
        status = _status(pid)
        if "VmHWM" in status:
            name = status["Name"].strip() if pid != os.getpid() else "driver"
            if command and f"-m\0{command}\0" in _read(pid, "cmdline"):
                name = command
            peaks[name] = max(peaks.get(name, 0), _mb(status, "VmHWM"))
    return peaks


def executors_mb() -> list[int]:
    """What each executor has now, with its Python workers; in local mode the driver's Java is the only one."""
    children = _children()
    javas = [pid for pid in _below(os.getpid(), children) if _status(pid).get("Name", "").strip() == "java"]
    executors = [pid for pid in javas if "CoarseGrainedExecutorBackend" in _read(pid, "cmdline")] or javas
    return [sum(_mb(_status(pid), "VmRSS") for pid in _below(each, children)) for each in executors]


def _status(pid: int) -> dict[str, str]:
    return dict(line.split(":", 1) for line in _read(pid, "status").splitlines() if ":" in line)


def _mb(status: dict[str, str], name: str) -> int:
    return int(status[name].split()[0]) // 1024 if name in status else 0


def _family() -> list[int]:
    return list(_below(os.getpid(), _children()))


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        if stat := _stat(pid):
            children.setdefault(int(stat[1]), []).append(pid)
    return children


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, []):
        yield from _below(child, children)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name: state, parent, …; none for a process that has just ended."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
