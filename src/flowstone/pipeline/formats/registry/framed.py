"""Values with the Confluent wire format: each decoded with the schema that it was written with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from flowstone.pipeline.formats.arrow_values import Decoded
from flowstone.pipeline.formats.bad_values import BadValue
from flowstone.pipeline.formats.cursor import Ints
from flowstone.pipeline.formats.registry import wire_format
from flowstone.pipeline.formats.registry.client import RegisteredSchema, UnknownSchema, client_for
from flowstone.pipeline.formats.registry.settings import RegistrySettings
from flowstone.pipeline.formats.registry.wire_format import SchemaKey

# Decodes values, without their frames, that were all written with one schema.
SchemaDecoder = Callable[[pa.Array, SchemaKey, RegisteredSchema], Decoded]


def decode(
    settings: RegistrySettings,
    kind: str,
    columns: pa.DataType,
    decoder: SchemaDecoder,
    values: pa.Array,
    headers: pa.Array | None,
) -> Decoded:
    """Return a struct of `columns` for each value. `kind` is the registry's name of the format."""
    framed = wire_format.split(values, headers, indexes=kind == "PROTOBUF")
    causes = dict(framed.causes)
    pieces: list[pa.Array] = []
    places = np.full(len(values), -1, np.int64)
    count = 0
    for number, key in enumerate(framed.keys):
        members = np.flatnonzero(framed.which == number)
        schema = _schema(settings, kind, key)
        if isinstance(schema, tuple):
            causes.update(dict.fromkeys(members.tolist(), schema))
            continue
        whole = len(members) == len(values)
        found = decoder(framed.values if whole else framed.values.take(pa.array(members)), key, schema)
        if whole:
            return found
        causes.update({int(members[index]): cause for index, cause in found.causes.items()})
        pieces.append(found.rows)
        places[members] = np.arange(count, count + len(members))
        count += len(members)
    return Decoded(_scattered(pieces, places, columns), causes)


def _scattered(pieces: list[pa.Array], places: Ints, columns: pa.DataType) -> pa.Array:
    if not pieces:
        return pa.nulls(len(places), columns)
    return pa.concat_arrays(pieces).take(pa.array(places, mask=places < 0))


def _schema(settings: RegistrySettings, kind: str, key: SchemaKey) -> RegisteredSchema | tuple[BadValue, str]:
    """Return the schema of a key, or why its records cannot be decoded."""
    client = client_for(settings)
    try:
        found = client.by_guid(key.guid) if key.guid else client.by_id(key.id)
    except UnknownSchema:
        return BadValue.UNKNOWN_SCHEMA, f"the registry {settings.url} has no {key}"
    if found.type != kind:
        return BadValue.INCOMPATIBLE_SCHEMA, f"the record's {key} is of the type {found.type}, and should be {kind}"
    return found
