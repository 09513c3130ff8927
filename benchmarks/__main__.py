"""All benchmarks, one after the other: `python -m benchmarks [--quick]`. Each also runs alone, see README.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Scripts beside this one are benchmarks, except what they share.
SHARED = {"__main__", "scale_page", "workload"}
QUICK = {
    "benchmarks.live": ["--quick"],
    "benchmarks.matching": ["--quick"],
    "benchmarks.pipeline": ["--quick"],
    "benchmarks.parse_conditions": ["--count", "50000"],
}


def main(quick: bool) -> int:
    """Runs every benchmark even if one fails; fails if one did."""
    scripts = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED)
    failed = [name for name in ("matching", "pipeline", "live", *scripts) if _run(f"benchmarks.{name}", quick) != 0]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(module: str, quick: bool) -> int:
    print(f"\n== {module}", flush=True)
    options = QUICK.get(module, []) if quick else []
    return subprocess.run([sys.executable, "-m", module, *options], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(quick="--quick" in sys.argv[1:]))
