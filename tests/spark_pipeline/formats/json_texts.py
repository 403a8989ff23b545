"""Random JSON values for tests of decoders: objects with fitting and with odd fields, and damaged ones."""

from __future__ import annotations

import json
import random

COLUMNS = (
    "id string, small tinyint, short smallint, number int, count bigint, total double, price decimal(8,2), "
    "wide decimal(38,6), flag boolean, day date, at timestamp, `größe` int"
)
NAMES = ("id", "small", "short", "number", "count", "total", "price", "wide", "flag", "day", "at", "größe", "other")
# Fields as JSON's text: what fits a column, what fits only some, what is odd, what is no JSON.
STRINGS = ['""', '"a"', '"größer 😀"', r'"\u00e4\n\"\\\/"', r'"\ud83d\ude00"', r'"\ud83d"', r'"\udc00x"', r'"\u0000"']
STRINGS += ['"a\tb"', r'"\x"', '"\x7f"', '"NaN"', '"Infinity"', '"true"', '"5"', '"1.5"', "'a'"]
NUMBERS = ["0", "-0", "-0.0", "7", "-7", "127", "128", "-128", "-129", "255", "32768", "2147483647", "2147483648"]
NUMBERS += ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "999999999999999999", "12345678"]
NUMBERS += [
    "1.0",
    "1.5",
    "1.25",
    "1.255",
    "0.1",
    "0.30000000000000004",
    "5e-324",
    "1e5",
    "1E+5",
    "1e-5",
    "1.5e3",
    "1e400",
]
NUMBERS += ["123456.78", "999999.99", "1234567.8", "1e250", "1e251", "-1.7976931348623157e308", "123456789012345.67"]
NUMBERS += ["01", "+1", "1.", ".5", "-", "1e", "0x10", "NaN", "Infinity", "1" * 70, "0." + "3" * 70]
TIMES = ["2026-11-01", "2024-02-29", "2023-02-29", "0001-01-01", "0000-01-01", "9999-12-31", "2026-1-1", "2026-13-01"]
TIMES += [
    f"{day}{mark}{time}{zone}"
    for day in ("2026-11-01", "1969-12-31", "1582-10-10")
    for mark in "T "
    for time in ("10:00:00", "23:59:59.123456", "00:00:00.5", "10:00:00.1234567", "24:00:00", "10:00:60", "10:00")
    for zone in ("", "Z", "+01:00", "-00:30", "+18:00", "+19:00", "+0100", " UTC", "z")
]
OTHERS = ["null", "true", "false", "nul", "True", "{}", "[]", '{"x": [1, {"y": null}], "z": "}"}', "[1,]", '{"x" 1}']
OTHERS += ["[" * 70 + "]" * 70, "", "/* */ 1"]
FIELDS = [*STRINGS, *NUMBERS, *(json.dumps(each) for each in TIMES), *OTHERS]


def random_values(count: int, seed: int) -> list[bytes]:
    """Return values of which some are plain, some unusual and some bad."""
    source = random.Random(seed)
    values = [f'{{"{name}": {field}}}'.encode() for name in NAMES for field in FIELDS]
    source.shuffle(values)
    values = values[: count // 2]
    return values + [_damaged(_object(source), source) for _ in range(count - len(values))]


def _object(source: random.Random) -> bytes:
    space = source.choice(["", " ", "\n\t "])
    fitting = [
        '"a"',
        "5",
        "6",
        "7",
        "8",
        "1.5",
        "2.25",
        "0.1",
        "true",
        '"2026-11-01"',
        '"2026-11-01T10:00:00Z"',
        "9",
        "[]",
    ]
    chosen = [each for each in zip(NAMES, fitting, strict=True) if source.random() < 0.7]
    source.shuffle(chosen)
    if chosen and source.random() < 0.3:
        chosen[0] = (chosen[0][0], source.choice(FIELDS))
    members = f",{space}".join(f'"{name}"{space}:{space}{field}' for name, field in chosen)
    return f"{space}{{{space}{members}{space}}}{space}".encode()


def _damaged(value: bytes, source: random.Random) -> bytes:
    kind, at = source.random(), source.randrange(len(value))
    if kind < 0.6:
        return value
    if kind < 0.7:
        return value[:at]
    if kind < 0.8:
        return value[:at] + source.choice([b'"', b"}", b",", b"\xff", b"\xc3", b"\\", b"{", b":", b"]"]) + value[at:]
    if kind < 0.9:
        return value[:at] + value[at + 1 :]
    return value + source.choice([b"{}", b"]", b"x", b"\0", b",{}", value])
