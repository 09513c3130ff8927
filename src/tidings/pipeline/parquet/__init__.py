"""Parquet files of deliveries, written by the workers themselves.

In reading order:

    row_groups    collects matched pairs until a row group is worth its dictionary, then writes it
    list_writer   a Parquet writer for lists of ids, straight from subscription numbers (`--compact`)
    thrift        Thrift's compact protocol, in which Parquet writes footers and page headers

Rows of pairs, and lists whose dictionary would be too large, go through Arrow's own writer.
"""
