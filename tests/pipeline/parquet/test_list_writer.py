"""Lists of texts as Parquet pages: every reader finds what was written, however it was cut into pages and row groups."""

from __future__ import annotations

from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.pipeline.parquet.list_writer import PAGE_ITEMS, ListFile, bit_packed, plain
from tidings.pipeline.parquet.thrift import Field, Items, Kind, decode, encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = ["w0", "", "élan", "水", *(f"subscription-{n}" for n in range(36))]
lists_of_numbers = st.lists(st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=30), min_size=1, max_size=30)

_values = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(lambda number: Field(Kind.I32, number)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: Field(Kind.I64, number)),
    st.binary(max_size=200).map(lambda word: Field(Kind.BINARY, word)),
    st.integers(0, 127).map(lambda number: Field(Kind.BYTE, number)),
    st.sampled_from([Kind.TRUE, Kind.FALSE]).map(lambda kind: Field(kind, None)),
    st.lists(st.integers(-5, 5), max_size=20).map(lambda numbers: Field(Kind.LIST, Items(Kind.I64, numbers))),
)
structs = st.recursive(
    st.dictionaries(st.integers(1, 15), _values, max_size=5),
    lambda inner: st.dictionaries(
        st.integers(1, 15),
        st.one_of(
            inner.map(lambda fields: Field(Kind.STRUCT, fields)),
            st.lists(inner, max_size=16).map(lambda many: Field(Kind.LIST, Items(Kind.STRUCT, many))),
        ),
        max_size=3,
    ),
    max_leaves=20,
)


def write(
    path: Path,
    groups: list[list[list[int]]],
    events: list[Any],
    id_type: pa.DataType,
    page_items: int = PAGE_ITEMS,
) -> None:
    """A row group for each of `groups`, whose events come one after another."""
    file = ListFile(str(path), pa.array(TEXTS), id_type, page_items=page_items)
    ends = [0, *accumulate(len(group) for group in groups)]
    for group, start in zip(groups, ends):
        counts = np.array([len(numbers) for numbers in group], np.int32)
        flat = np.array([number for numbers in group for number in numbers], np.int32)
        file.write(pa.chunked_array([pa.array(events[start : start + len(group)], id_type)]), counts, flat)
    file.close()


def texts_of(groups: list[list[list[int]]]) -> list[list[str]]:
    return [[TEXTS[number] for number in numbers] for group in groups for numbers in group]


@given(structs)
def test_decoding_undoes_encoding(fields: dict[int, Field]) -> None:
    assert decode(encode(fields)) == fields


@given(st.integers(1, 31).flatmap(lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1)))))
def test_bit_packed_numbers_follow_one_another_without_a_gap(case: tuple[int, list[int]]) -> None:
    bits, numbers = case
    whole = int.from_bytes(bit_packed(np.array(numbers, np.int32), bits).tobytes(), "little")
    assert whole == sum(number << at * bits for at, number in enumerate(numbers))


@given(st.lists(st.text(max_size=5), max_size=8), st.integers(0, 8))
def test_plain_texts_follow_their_lengths(texts: list[str], start: int) -> None:
    encoded = [text.encode() for text in texts[start:]]
    assert plain(pa.array(texts, pa.string()).slice(start)).tobytes() == b"".join(
        len(text).to_bytes(4, "little") + text for text in encoded
    )


@given(st.lists(lists_of_numbers, max_size=3), st.sampled_from([1, 8, 20, 1 << 18]))
def test_what_arrow_reads_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[list[int]]], page_items: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "lists.parquet"
    events = list(range(sum(len(group) for group in groups)))
    write(path, groups, events, pa.int64(), page_items)
    found = pq.read_table(path)
    assert found["event_id"].to_pylist() == events
    assert found["subscription_ids"].to_pylist() == texts_of(groups)
    assert pq.read_metadata(path).num_row_groups == len(groups)


@pytest.mark.parametrize(
    ("id_type", "ids"),
    [
        (pa.string(), ["a", "", "é"]),
        (pa.int32(), [3, -1, None]),
        (pa.decimal128(20, 2), [Decimal("1.25"), Decimal("-9.00"), Decimal("0.01")]),
        (pa.binary(), [b"\0", b"", b"x"]),
        (pa.timestamp("us", "UTC"), [1, 2, 3]),
    ],
)
def test_events_may_have_ids_of_any_type(tmp_path: Path, id_type: pa.DataType, ids: list[Any]) -> None:
    write(tmp_path / "lists.parquet", [[[0], [1, 2]], [[3]]], ids, id_type)
    found = pq.read_table(tmp_path / "lists.parquet")
    assert found["event_id"].combine_chunks() == pa.array(ids, id_type)


def test_spark_reads_lists_of_many_pages_in_both_of_its_ways(spark: SparkSession, tmp_path: Path) -> None:
    few, many = [[[5], [1, 2, 3]]], [[[n % 40, (7 * n) % 40] * (1 + n % 9) for n in range(100)]]
    groups = few + many  # The first has a dictionary of its own, the second that of all.
    write(tmp_path / "lists.parquet", groups, list(range(102)), pa.int64(), page_items=20)
    for vectorized in ("true", "false"):
        spark.conf.set("spark.sql.parquet.enableNestedColumnVectorizedReader", vectorized)
        rows = spark.read.parquet(str(tmp_path / "lists.parquet")).orderBy("event_id").collect()
        assert [row.event_id for row in rows] == list(range(102))
        assert [row.subscription_ids for row in rows] == texts_of(groups)
    spark.conf.unset("spark.sql.parquet.enableNestedColumnVectorizedReader")
