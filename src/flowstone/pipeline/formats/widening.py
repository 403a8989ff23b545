"""The columns of a DataFrame as the columns that a declared schema wants, without loss.

Columns are matched by name. Numbers become wider ones. Anything else is an error at declaration, because a cast in a
sink could change values silently; a step can cast.
"""

from __future__ import annotations

from collections.abc import Set

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.plain_values import quoted

_LOSSLESS = {
    "tinyint": {"smallint", "int", "bigint", "float", "double"},
    "smallint": {"int", "bigint", "float", "double"},
    "int": {"bigint", "double"},
    "float": {"double"},
}


def widened(columns: st.StructType, wanted: st.StructType, defaults: Set[str] = frozenset()) -> Column:
    """Return a struct of the wanted columns. Raises PipelineError for columns that are missing, unknown or do not fit.

    The wanted columns in `defaults` may be missing; they are NULL then.
    """
    given = {each.name: each for each in columns}
    unknown = [each for each in given if each not in wanted.names]
    if unknown:
        raise PipelineError(
            f"the schema has no field {unknown[0]}, which is a column of the sink's input; "
            f"drop the column in a step, or add the field"
        )
    found = []
    for each in wanted:
        if each.name in given:
            _check(each.name, given[each.name].dataType, each.dataType)
            found.append(sf.col(quoted(each.name)).cast(each.dataType).alias(each.name))
        elif each.name in defaults:
            found.append(sf.lit(None).cast(each.dataType).alias(each.name))
        else:
            raise PipelineError(f"the schema's field {each.name} is no column of the sink's input; add it in a step")
    return sf.struct(*found)


def _check(path: str, given: st.DataType, wanted: st.DataType) -> None:
    if not _fits(given, wanted):
        raise PipelineError(
            f"the column {path} is {given.simpleString()}, and the schema wants {wanted.simpleString()}; "
            f"cast it in a step"
        )


def _fits(given: st.DataType, wanted: st.DataType) -> bool:
    if isinstance(given, st.StructType) and isinstance(wanted, st.StructType):
        # Spark casts a struct by the order of its fields.
        return given.names == wanted.names and all(
            _fits(one.dataType, other.dataType) for one, other in zip(given, wanted, strict=True)
        )
    if isinstance(given, st.ArrayType) and isinstance(wanted, st.ArrayType):
        return _fits(given.elementType, wanted.elementType)
    if isinstance(given, st.MapType) and isinstance(wanted, st.MapType):
        return _fits(given.keyType, wanted.keyType) and _fits(given.valueType, wanted.valueType)
    if isinstance(given, st.DecimalType) and isinstance(wanted, st.DecimalType):
        return given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale
    one, other = given.simpleString(), wanted.simpleString()
    return one == other or isinstance(given, st.NullType) or other in _LOSSLESS.get(one, ())
