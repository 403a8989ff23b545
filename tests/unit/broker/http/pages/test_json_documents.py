"""JSON that is encoded in steps is the JSON of the whole."""

from __future__ import annotations

import json

from flowstone.broker.http.pages.json_documents import encode_json
from flowstone.broker.loop.time_slices import run_whole

DOCUMENT = {
    "name": 'a "quoted" name',
    "empty": [],
    "one": {"x": None},
    "many": [{"member": number, "places": [{"at": each} for each in range(number)]} for number in range(5)],
}


def test_iterators_are_arrays_also_within_each_other() -> None:
    members = ({**each, "places": iter(each["places"])} for each in DOCUMENT["many"])
    encoded = run_whole(encode_json({**DOCUMENT, "empty": iter(()), "many": members}))
    assert encoded == json.dumps(DOCUMENT)
    assert run_whole(encode_json(iter([1, "two", iter([3])]))) == '[1, "two", [3]]'
    assert run_whole(encode_json(DOCUMENT)) == json.dumps(DOCUMENT)


def test_there_is_a_step_for_each_element() -> None:
    assert sum(1 for _ in encode_json({"numbers": iter(range(100))})) == 100
