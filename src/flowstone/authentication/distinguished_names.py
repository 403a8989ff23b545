"""The distinguished name of a certificate's subject, from its DER bytes to text as Java's `X500Principal` has it.

RFC 2253: the last attribute first; attributes without a short name there as their number and the value's bytes in hex.
Reads as much ASN.1 as that needs, and fails on anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_SHORT_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1E: "utf-16-be", 0x1C: "utf-32-be"}
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_SPECIAL = ',+"\\<>;'


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER form. Raises ValueError if it is malformed."""
    fields = [each for each in _elements(_first(_first(certificate))) if each.tag != _VERSION]
    if len(fields) < 5:
        raise ValueError("the certificate has no subject")
    # serial number, signature, issuer, validity, subject
    return name_of(fields[4].content)


def name_of(content: bytes) -> str:
    """Return the text of a name, whose content is a sequence of sets of attributes."""
    parts = []
    for each in _elements(content):
        if each.tag != _SET:
            raise ValueError("a name is not made of sets")
        parts.append("+".join(_attribute(attribute) for attribute in _elements(each.content)))
    return ",".join(reversed(parts))


def _attribute(element: _Element) -> str:
    found = list(_elements(element.content))
    if element.tag != _SEQUENCE or len(found) != 2 or found[0].tag != _OID:
        raise ValueError("an attribute of a name is malformed")
    number, value = _object_id(found[0].content), found[1]
    short, encoding = _SHORT_NAMES.get(number), _ENCODINGS.get(value.tag)
    if short is None or encoding is None:
        return f"{number}=#{value.encoded.hex()}"
    return f"{short}={_escaped(value.content.decode(encoding))}"


def _escaped(text: str) -> str:
    escaped = "".join("\\" + each if each in _SPECIAL else each for each in text)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(text) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped


def _object_id(content: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise ValueError("an object identifier is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _first(data: bytes) -> bytes:
    """Return the content of the first element."""
    for element in _elements(data):
        return element.content
    raise ValueError("an element is empty")


def _elements(data: bytes) -> Iterator[_Element]:
    at = 0
    while at < len(data):
        start = at
        try:
            tag, size = data[at], data[at + 1]
            at += 2
            if size & 0x80:
                count = size & 0x7F
                if not 0 < count <= 4:
                    raise ValueError("a length is malformed")
                size = int.from_bytes(data[at : at + count], "big")
                at += count
        except IndexError:
            raise ValueError("the bytes end inside an element") from None
        content = data[at : at + size]
        if len(content) < size:
            raise ValueError("the bytes end inside an element")
        at += size
        yield _Element(tag, content, data[start:at])
