"""`tidings compact`: merges small files of deliveries."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.match import ConfOption, MasterOption
from tidings.cli.spark import spark_session
from tidings.cli.terminal import Output, OutputOption, show


def compact(
    deliveries: Annotated[
        str, typer.Argument(metavar="DIR", help="Deliveries of `tidings run`: a folder, as path or URI; or delta:PATH.")
    ],
    file_mb: Annotated[
        int, typer.Option("--file-mb", metavar="MB", min=1, help="The size that files should have after it.")
    ] = 128,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Merge small files of deliveries into larger ones, sorted by subscriber.

    The pipeline may go on running, and you may kill the command at any time: readers of the
    committed deliveries have each of them once at every moment, and the next compaction
    finishes what was begun. Programs that list the folder themselves should wait until it ends.

    \b
    Examples:
      tidings compact deliveries
      tidings compact s3a://lake/deliveries --file-mb 256 --conf spark.jars=hadoop-aws.jar,…
      tidings compact delta:deliveries           by Delta's own OPTIMIZE; needs no Spark
    """
    from tidings.pipeline import check_deliveries, compact_deliveries, compact_table, parse_settings

    settings = parse_settings(conf or [])
    done = compact_table(deliveries, settings)
    if done is None:
        check_deliveries(deliveries)
        with spark_session("tidings compact", master, settings) as spark:
            done = compact_deliveries(spark, deliveries, file_bytes=file_mb << 20)
    show([{"files before": done.before, "files after": done.after, "folder": deliveries}], output)
