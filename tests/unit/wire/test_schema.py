"""The schema notation, and types that no API of ours uses yet."""

from __future__ import annotations

import pytest

from flowstone.wire import codec, generate
from flowstone.wire.message import Message
from flowstone.wire.schema import SchemaError, Versions, file_name, load_all, parse_api

TEXT = """
api 7 Toy 1-4 flex 3   # a comment
request
  names []string 2+ ?3+
  leaf ToyLeaf 2+ ?
    ratio float64
    payload bytes 2-3 ?
    ids []uuid
  limit int64 4 @0 =-1
response
  leaves []ToyLeaf
  flag bool =true
"""


class ToyLeaf(Message):
    __slots__ = ("ids", "payload", "ratio")

    def __init__(self, **fields: object) -> None:
        for name, value in ({"ratio": 0.0, "payload": b"", "ids": ()} | fields).items():
            setattr(self, name, value)


class ToyResponse(Message):
    __slots__ = ("flag", "leaves")

    def __init__(self, leaves: object = (), flag: bool = True) -> None:
        self.leaves = leaves
        self.flag = flag


def test_versions_nullability_tags_and_defaults_are_read():
    schema = parse_api(TEXT)
    names, leaf, limit = schema.request.fields
    assert (schema.key, schema.name, schema.versions, schema.flexible_from) == (7, "Toy", Versions(1, 4), 3)
    assert (names.is_array, names.versions, names.nullable) == (True, Versions(2, 4), Versions(3, 4))
    assert leaf.struct is not None
    assert [field.name for field in leaf.struct.plain_fields(4)] == ["ratio", "ids"]
    assert (limit.tag, limit.default, limit.versions) == (0, -1, Versions(4, 4))


def test_a_struct_named_again_is_the_same_struct():
    schema = parse_api(TEXT)
    assert schema.response.fields[0].struct is schema.request.fields[1].struct


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_floats_bytes_and_arrays_of_ids_survive_encoding_and_decoding(version):
    schema = parse_api(TEXT)
    payload = b"" if version in (1, 4) else bytes(200)
    leaf = ToyLeaf(ratio=0.5, payload=payload, ids=[bytes(16), bytes(range(16))])
    response = ToyResponse(leaves=[leaf, ToyLeaf()], flag=False)
    flexible = schema.is_flexible(version)
    body = b"".join(codec.compile_encoder(schema.response, version, flexible)(response))
    decode = codec.compile_decoder(schema.response, version, flexible, {"ToyLeaf": ToyLeaf, "ToyResponse": ToyResponse})
    assert decode(memoryview(body), 0) == response


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        pytest.param("api 7 Toy 1-4", "expected `api", id="header"),
        pytest.param("api 7 Toy 1-4 flex 3\nresponse\nrequest", "expected `request`", id="order"),
        pytest.param("api 7 Toy 1-4 flex 3\nrequest\n  a int32 5+\nresponse", "not within 1-4", id="versions outside"),
        pytest.param("api 7 Toy 1-4 flex 3\nrequest\n  a int32 x\nresponse", "not a range", id="versions"),
        pytest.param("api 7 Toy 1-4 flex 3\nrequest\n  a Missing\nresponse", "nowhere", id="unknown struct"),
        pytest.param("api 7 Toy 1-4 flex 3\nrequest\n  a int8\n   b int8\nresponse", "uneven", id="indentation"),
        pytest.param("api 7 Toy 1-4 flex 3\nrequest\n  a string =x\nresponse", "no default", id="default"),
    ],
)
def test_text_that_makes_no_sense_is_refused(broken, reason):
    with pytest.raises(SchemaError, match=reason):
        parse_api(broken)


def test_every_file_is_named_after_the_api_it_describes():
    directory = generate.TARGET.parent
    assert sorted(file.name for file in directory.glob("*.txt")) == sorted(file_name(api.name) for api in load_all())


def test_struct_names_are_unique_over_all_apis():
    names = [struct.name for schema in load_all() for struct, _ in schema.structs()]
    assert len(names) == len(set(names))


def test_the_generated_module_is_up_to_date():
    assert generate.TARGET.read_text(encoding="utf-8") == generate.generate_module(load_all())
