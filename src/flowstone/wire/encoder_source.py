"""Generator of encoder source code: one function without calls per element, per message and version.

The counterpart of `decoder_source`: fixed-size values and the length prefix that follows them are packed by one
`Struct.pack`. Packed parts are collected in a list and joined into one bytes object before each `records` value. The
value itself is passed on by reference, so record bytes are never copied here.

An encoder in slices is the same code as a generator that yields after every `SLICE_ELEMENTS` elements.

An encoder does not check its input: a value of a wrong type or range is our bug and raises whatever Python raises.
"""

from __future__ import annotations

from flowstone.wire.primitives import SLICE_ELEMENTS
from flowstone.wire.schema import FIXED_CODES, Field, Struct
from flowstone.wire.source_lines import SourceLines

_ZERO_BYTE = ("x", "")  # packed without an argument


class EncoderSource:
    """The source text of one encoder, and the names of the `struct` formats that it uses."""

    def __init__(self, message: Struct, version: int, flexible: bool, *, in_slices: bool = False) -> None:
        self._version = version
        self._flexible = flexible
        self._in_slices = in_slices
        self._source = SourceLines()
        self._emit, self._block, self._name = self._source.emit, self._source.block, self._source.name
        self._add = "add"  # the function that appends a packed part: tagged values have separate lists
        self._pending: list[tuple[str, str]] = []  # (struct code, expression) of values not yet packed
        self.formats: dict[str, str] = {}
        self._emit("def encode(message):")
        with self._block():
            self._emit("chunks = []")
            self._emit("parts = []")
            self._emit("add = parts.append")
            if in_slices:
                self._emit("elements = 0")
                self._emit("yield")  # a generator also where there is no array
            self._struct(message, "message")
            self._flush()
            self._emit("if parts:")
            with self._block():
                self._emit('chunks.append(b"".join(parts))')
            self._emit("return chunks")
        self.text = self._source.text

    # Emission

    def _flush(self) -> None:
        """Generate code that packs all pending values at once."""
        if self._pending:
            self._emit(self._packed())
            self._pending.clear()

    def _packed(self, *extra: tuple[str, str]) -> str:
        """Return the statement that packs the pending values and `extra`."""
        values = [*self._pending, *extra]
        if all(value == _ZERO_BYTE for value in values):
            return f"{self._add}({bytes(len(values))!r})"
        if [code for code, _ in values] == ["B"]:
            return f"{self._add}(ONE_BYTE[{values[0][1]}])"
        codes = "".join(code for code, _ in values)
        packer = f"pack_{codes.replace('?', 'o')}"
        self.formats[packer] = ">" + codes
        return f"{self._add}({packer}({', '.join(expression for _, expression in values if expression)}))"

    def _flush_with_length(self, length: str, code: str) -> None:
        """Generate code that packs the pending values and a length prefix.

        `length` already includes the one that the compact encoding adds.
        """
        if not self._flexible:
            self._pending.append((code, length))
            self._flush()
            return
        self._emit(f"if {length} < 0x80:")
        with self._block():
            self._emit(self._packed(("B", length)))
        if code == "i":
            # Lengths of arrays and records often need more than one byte, those of strings rarely.
            self._emit(f"elif {length} < 0x4000:")
            with self._block():
                self._emit(self._packed(("B", f"{length} & 0x7F | 0x80"), ("B", f"{length} >> 7")))
        self._emit("else:")
        with self._block():
            if self._pending:
                self._emit(self._packed())
            self._emit(f"{self._add}(encode_uvarint({length}))")
        self._pending.clear()

    # Structs

    def _struct(self, struct: Struct, source: str) -> None:
        for field in struct.plain_fields(self._version):
            self._field(field, f"{source}.{field.name}", field.is_nullable(self._version))
        if self._flexible:
            tagged = struct.tagged_fields(self._version)
            if tagged:
                self._tags(tagged, source)
            else:
                self._pending.append(_ZERO_BYTE)

    def _tags(self, fields: list[Field], source: str) -> None:
        self._flush()
        tests = [self._differs(field, f"{source}.{field.name}") for field in fields]
        self._emit(f"if {' or '.join(tests)}:")
        with self._block():
            tags = self._name("tags")
            self._emit(f"{tags} = []")
            for field, test in zip(fields, tests, strict=True):
                self._emit(f"if {test}:")
                with self._block():
                    self._tagged_value(field, f"{source}.{field.name}", tags)
            self._emit(f"{self._add}(encode_tags({tags}))")
        self._emit("else:")
        with self._block():
            self._emit(self._packed(_ZERO_BYTE))

    def _differs(self, field: Field, expression: str) -> str:
        if field.is_array:
            return expression
        if field.default is None:
            return f"{expression} is not None"
        return f"{expression} != {field.default!r}"

    def _tagged_value(self, field: Field, source: str, tags: str) -> None:
        """Generate code that encodes a tagged value separately, because its size precedes it."""
        assert field.type != "records", "records are never tagged: they leave by reference"
        outer = self._add
        value = self._name("value")
        self._emit(f"{value} = []")
        self._add = f"{value}.append"
        # Only a value that differs from its default gets here: an absent tag means a null default, but a
        # string keeps the nullable encoding.
        self._field(field, source, field.is_nullable(self._version))
        self._flush()
        self._add = outer
        self._emit(f'{tags}.append(({field.tag}, b"".join({value})))')

    # Fields

    def _field(self, field: Field, source: str, nullable: bool) -> None:
        if field.is_array:
            self._array(field, source, nullable)
        elif field.struct is not None:
            self._struct_field(field.struct, source, nullable)
        elif field.type in FIXED_CODES:
            self._pending.append((FIXED_CODES[field.type], source))
        elif field.type == "records":
            self._records(source)
        else:
            self._text(field.type, source, nullable)

    def _struct_field(self, struct: Struct, source: str, nullable: bool) -> None:
        local = self._name("struct")
        self._emit(f"{local} = {source}")
        if not nullable:
            self._struct(struct, local)
            return
        null = self._packed(("b", "-1"))
        self._emit(f"if {local} is None:")
        with self._block():
            self._emit(null)
        self._emit("else:")
        with self._block():
            self._pending.append(("b", "1"))
            self._struct(struct, local)
            self._flush()

    def _length(self, local: str, nullable: bool) -> str:
        """Generate code that assigns the length prefix of `local` to a variable; return the variable's name."""
        length = self._name("length")
        counted = f"len({local})" + (" + 1" if self._flexible else "")
        null = "0" if self._flexible else "-1"
        self._emit(f"{length} = {null} if {local} is None else {counted}" if nullable else f"{length} = {counted}")
        return length

    def _text(self, type_name: str, source: str, nullable: bool) -> None:
        """Generate code for a string or bytes value, which is small enough to be copied."""
        local = self._name("value")
        encoded = f"{source}.encode()" if type_name == "string" else source
        if nullable and type_name == "string":
            self._emit(f"{local} = {source}")
            self._emit(f"if {local} is not None:")
            with self._block():
                self._emit(f"{local} = {local}.encode()")
        else:
            self._emit(f"{local} = {encoded}")
        self._flush_with_length(self._length(local, nullable), "h" if type_name == "string" else "i")
        if nullable:
            self._emit(f"if {local} is not None:")
            with self._block():
                self._emit(f"{self._add}({local})")
        else:
            self._emit(f"{self._add}({local})")

    def _records(self, source: str) -> None:
        local = self._name("records")
        self._emit(f"{local} = {source}")
        # Null is legal in every version that has records.
        self._flush_with_length(self._length(local, True), "i")
        self._emit(f"if {local} is not None and len({local}):")
        with self._block():
            self._emit('chunks.append(b"".join(parts))')
            self._emit("parts.clear()")
            self._emit(f"chunks.append({local})")

    def _array(self, field: Field, source: str, nullable: bool) -> None:
        local = self._name("items")
        self._emit(f"{local} = {source}")
        length = self._length(local, nullable)
        self._flush_with_length(length, "i")
        self._emit(f"if {local}:")
        with self._block():
            if field.struct is None and field.type in FIXED_CODES:
                self._emit(f"{self._add}(pack_{field.type}s[len({local})](*{local}))")
                return
            item = self._name("item")
            self._emit(f"for {item} in {local}:")
            with self._block():
                if self._in_slices:
                    self._emit("elements += 1")
                    self._emit(f"if not elements % {SLICE_ELEMENTS}:")
                    with self._block():
                        # Joining and freeing a million parts at the end would take too long.
                        self._emit("if parts:")
                        with self._block():
                            self._emit('chunks.append(b"".join(parts))')
                            self._emit("parts.clear()")
                        self._emit("yield")
                if field.struct is not None:
                    self._struct(field.struct, item)
                    self._flush()
                else:
                    self._text(field.type, item, False)
