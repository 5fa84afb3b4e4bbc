"""The columns of a query, as DDL and as Arrow has them."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from pyspark_quire.columns import column_set


def test_all_columns_have_the_names_of_the_kafka_source():
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert list(column_set(None, include_headers=False).names) == names
    assert list(column_set(None, include_headers=True).names) == [*names, "headers"]


def test_ddl_and_arrow_say_the_same():
    found = column_set("offset, key", include_headers=False)
    assert found.ddl == "`offset` bigint, `key` binary"
    assert found.arrow == pa.schema([("offset", pa.int64()), ("key", pa.binary())])


@pytest.mark.parametrize("text", ["", "offset,offset", "ofset", "key,"])
def test_bad_columns_are_named(text):
    with pytest.raises(ValueError, match="columns"):
        column_set(text, include_headers=False)


def test_another_schema_is_refused():
    def field(name, kind):
        return SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda: kind))

    columns = column_set("offset,headers", include_headers=True)
    right = [
        field("offset", "bigint"),
        field("headers", "array<struct<key:string,value:binary>>"),
    ]
    columns.check(SimpleNamespace(fields=right))
    for wrong in (right[:1], right[::-1], [field("offset", "int"), right[1]]):
        with pytest.raises(ValueError, match="columns"):
            columns.check(SimpleNamespace(fields=wrong))
