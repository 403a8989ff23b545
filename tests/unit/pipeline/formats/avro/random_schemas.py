"""Random Avro schemas and values of them, as fastavro takes them and as Arrow returns them."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

DEPTH_MAX = 3
_SIMPLE = ("boolean", "int", "long", "float", "double", "string", "bytes", "enum", "fixed", "date", "time", "decimal")
_NESTED = ("nullable", "array", "map", "record", "union")
_EPOCH = datetime.datetime(1970, 1, 1)
_NUMBERS = {"int": 2**31, "long": 2**63}


class Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = 0

    def record(self, depth: int = 0) -> dict[str, Any]:
        fields = [{"name": f"f{n}", "type": self.type(depth)} for n in range(self.random.randint(1, 5))]
        return {"type": "record", "name": self._name(), "fields": fields}

    def _name(self) -> str:
        self._names += 1
        return f"N{self._names}"

    def type(self, depth: int) -> Any:
        kind = self.random.choice(_SIMPLE + (_NESTED if depth < DEPTH_MAX else ()))
        if kind in ("nullable", "array", "map", "union"):
            return self._holder(kind, depth + 1)
        units = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
        made: dict[str, Any] = {
            "enum": {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"]},
            "fixed": {"type": "fixed", "name": self._name(), "size": self.random.choice([1, 5, 20])},
            "date": {"type": "int", "logicalType": "date"},
            "time": {"type": "long", "logicalType": self.random.choice(units)},
            "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        }
        return self.record(depth + 1) if kind == "record" else made.get(kind, kind)

    def _holder(self, kind: str, depth: int) -> Any:
        if kind == "union":
            several = ["null", "string", "long", self.record(depth), {"type": "array", "items": "double"}]
            return self.random.sample(several, self.random.randint(2, 5))
        inner = self.type(depth)
        if kind == "nullable":
            return inner if isinstance(inner, list) else self.random.choice([["null", inner], [inner, "null"]])
        return {"type": kind, "items" if kind == "array" else "values": inner}

    def value(self, type: Any) -> Any:
        choice, number = self.random.choice, self.random.randint
        if isinstance(type, list):
            return self.value(choice(type))
        if isinstance(type, dict):
            return self._of_object(type)
        if type in _NUMBERS:
            limit = _NUMBERS[type]
            return choice([0, -1, limit - 1, -limit, number(-1000, 1000), number(-limit, limit - 1)])
        made = {
            "null": lambda: None,
            "boolean": lambda: choice([True, False]),
            "float": lambda: choice([0.0, 1.5, float("inf")]),
            "double": self.random.random,
            "string": lambda: "".join(choice("aéz€😀") for _ in range(choice([0, 1, 3, 200]))),
            "bytes": lambda: self.random.randbytes(choice([0, 1, 3, 200])),
        }
        return made[type]()

    def _of_object(self, type: dict[str, Any]) -> Any:
        choice, number = self.random.choice, self.random.randint
        logical = type.get("logicalType", "")
        made = {
            "date": lambda: datetime.date(1970, 1, 1) + datetime.timedelta(days=number(-(10**4), 10**5)),
            "decimal": lambda: Decimal(choice([0, 1, -1, 127, 128, -128, -129, 10**12 - 1, 1 - 10**12])).scaleb(-3),
            "enum": lambda: choice(type["symbols"]),
            "fixed": lambda: self.random.randbytes(type["size"]),
            "array": lambda: [self.value(type["items"]) for _ in range(choice([0, 1, 2, 5, 40]))],
            "map": lambda: {choice("abcdefgh"): self.value(type["values"]) for _ in range(choice([0, 1, 2, 5]))},
            "record": lambda: {each["name"]: self.value(each["type"]) for each in type["fields"]},
        }
        if "timestamp" in logical:
            found = _EPOCH + datetime.timedelta(milliseconds=number(-(10**12), 10**13))
            return found if logical.startswith("local") else found.replace(tzinfo=datetime.UTC)
        return made.get(logical, made.get(type["type"]))()  # type: ignore[misc]


def comparable(type: Any, value: Any, *, is_arrow: bool) -> Any:
    """Return a value of fastavro's, or of Arrow's, in a form in which equal values are equal."""
    if value is None:
        return None
    if isinstance(type, list):
        members = [each for each in type if each != "null"]
        if len(members) == 1:
            return comparable(members[0], value, is_arrow=is_arrow)
        if is_arrow:
            [(number, found)] = [
                (n, value[f"member{n}"]) for n in range(len(members)) if value[f"member{n}"] is not None
            ]
        else:
            [(number, found)] = [(n, value) for n, each in enumerate(members) if _fits(each, value)]
        return number, comparable(members[number], found, is_arrow=is_arrow)
    if isinstance(type, dict) and type["type"] == "array":
        return [comparable(type["items"], each, is_arrow=is_arrow) for each in value]
    if isinstance(type, dict) and type["type"] == "map":
        pairs = value if is_arrow else value.items()
        return sorted((key, comparable(type["values"], each, is_arrow=is_arrow)) for key, each in pairs)
    if isinstance(type, dict) and type["type"] == "record":
        return [comparable(each["type"], value[each["name"]], is_arrow=is_arrow) for each in type["fields"]]
    return value


def _fits(type: Any, value: Any) -> bool:
    if isinstance(type, dict):
        return isinstance(value, list if type["type"] == "array" else dict)
    return isinstance(value, str if type == "string" else int)
