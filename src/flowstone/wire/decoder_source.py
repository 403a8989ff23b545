"""Generator of decoder source code: one function without calls per element, per message and version.

The fastest form that was measured: consecutive fields of fixed size, the length prefix that follows them and a struct's
tag count are read by a single `Struct.unpack_from`, directly into the attributes of the object. Loops are inlined.
Compact lengths and tag counts are read as one byte, and read again by a helper only if the byte has the continuation
bit.

A decoder in slices is the same code as a generator: it yields after every `SLICE_ELEMENTS` elements, so that its caller
can serve others in between.

Invariant of the generated code: `position` never exceeds `size` undetected. Slices are checked explicitly, and
`unpack_from` checks itself.
"""

from __future__ import annotations

from contextlib import nullcontext

from flowstone.wire.primitives import ARRAY_LENGTH_UNCHECKED_MAX, SLICE_ELEMENTS, STRING_LENGTH_MAX
from flowstone.wire.schema import FIXED_CODES, FIXED_SIZES_BYTES, Field, Struct
from flowstone.wire.source_lines import SourceLines

_READERS = {
    "string": 'str(view[position:end], "utf-8")',
    "bytes": "bytes(view[position:end])",
    "records": "view[position:end]",
}
_CODE_SIZES_BYTES = {FIXED_CODES[name]: size for name, size in FIXED_SIZES_BYTES.items()} | {"B": 1}


class DecoderSource:
    """The source text of one decoder, and the names of the `struct` formats that it uses."""

    def __init__(
        self,
        message: Struct,
        version: int,
        flexible: bool,
        *,
        nested_max: int | None,
        elements_max: int | None = None,
        in_slices: bool = False,
    ) -> None:
        """Prepare a decoder. `nested_max` limits the total elements of nested arrays, `elements_max` those of all
        arrays.
        """
        self._in_slices = in_slices
        self._version = version
        self._flexible = flexible
        self._elements_max, self._counted_depth = (nested_max, 1) if elements_max is None else (elements_max, 0)
        self._array_depth = 0
        self._source = SourceLines()
        self._emit, self._block, self._name = self._source.emit, self._source.block, self._source.name
        self._pending: list[tuple[str, str]] = []  # (struct code, target) of fixed-size fields not yet read
        self.formats: dict[str, str] = {}
        self._emit("def decode(view, position):")
        with self._block():
            self._emit("size = len(view)")
            if self._elements_max is not None:
                self._emit("counted = 0")
            if in_slices:
                self._emit("elements = 0")
            self._emit("try:")
            with self._block():
                self._struct(message, "message", message.name)
                self._flush()
                if in_slices:
                    self._emit("yield")  # a generator also where there is no array
                self._emit("return message")
            self._emit("except MALFORMED as error:")
            with self._block():
                self._emit(f'raise ProtocolError(f"{message.name} version {version}: {{error}}") from error')
        self.text = self._source.text

    # Emission

    def _flush(self) -> None:
        """Generate code that reads all pending fixed-size fields at once."""
        if not self._pending:
            return
        if len(self._pending) == 1 and self._pending[0][0] == "B":
            self._emit(f"{self._pending[0][1]} = view[position]")
            self._emit("position += 1")
            self._pending.clear()
            return
        codes = "".join(code for code, _ in self._pending)
        reader = f"unpack_{codes.replace('?', 'o')}"
        self.formats[reader] = ">" + codes
        targets = ", ".join(target for _, target in self._pending)
        comma = "," if len(self._pending) == 1 else ""
        self._emit(f"{targets}{comma} = {reader}(view, position)")
        self._emit(f"position += {sum(_CODE_SIZES_BYTES[code] for code, _ in self._pending)}")
        self._pending.clear()

    # Structs

    def _struct(self, struct: Struct, target: str, path: str) -> None:
        self._emit(f"{target} = new({struct.name})")
        for field in struct.absent_fields(self._version):
            self._emit(f"{target}.{field.name} = {field.default!r}")
        for field in struct.plain_fields(self._version):
            self._field(field, f"{target}.{field.name}", f"{path}.{field.name}")
        if self._flexible:
            self._tags(struct.tagged_fields(self._version), target, path)

    def _tags(self, fields: list[Field], target: str, path: str) -> None:
        for field in fields:
            self._emit(f"{target}.{field.name} = {field.default!r}")
        count = self._name("tags")
        self._pending.append(("B", count))
        self._flush()
        self._emit(f"if {count}:")
        with self._block():
            if not fields:
                self._emit("position = skip_tags(view, position - 1)")
                return
            tag, tag_end = self._name("tag"), self._name("tag_end")
            self._emit(f"{count}, position = read_tag_count(view, position - 1)")
            self._emit(f"for _ in range({count}):")
            with self._block():
                self._emit(f"{tag}, position, {tag_end} = read_tag(view, position)")
                for index, field in enumerate(fields):
                    self._emit(f"{'elif' if index else 'if'} {tag} == {field.tag}:")
                    with self._block():
                        self._field(field, f"{target}.{field.name}", f"{path}.{field.name}")
                        self._flush()
                self._emit("else:")
                with self._block():
                    self._emit(f"position = {tag_end}")
                self._emit(f"if position != {tag_end}:")
                with self._block():
                    self._refuse(f"{path}: a tagged field is not as long as it says")

    # Fields

    def _field(self, field: Field, target: str, path: str) -> None:
        if field.is_array:
            self._array(field, target, path)
        elif field.struct is not None:
            self._struct_field(field, field.struct, target, path)
        elif field.type in FIXED_CODES:
            self._pending.append((FIXED_CODES[field.type], target))
        else:
            self._variable(field.type, field.is_nullable(self._version), target, path)

    def _struct_field(self, field: Field, struct: Struct, target: str, path: str) -> None:
        local = self._name("struct")
        if not field.is_nullable(self._version):
            self._struct(struct, local, path)
            self._flush()
            self._emit(f"{target} = {local}")
            return
        marker = self._name("marker")
        self._pending.append(("b", marker))
        self._flush()
        self._emit(f"if {marker} < 0:")
        with self._block():
            self._emit(f"{target} = None")
        self._emit("else:")
        with self._block():
            self._struct(struct, local, path)
            self._flush()
            self._emit(f"{target} = {local}")

    def _length(self, code: str) -> str:
        """Generate code that reads a length prefix with the pending fields. A compact length is stored plus one."""
        length = self._name("length")
        self._pending.append(("B" if self._flexible else code, length))
        self._flush()
        if self._flexible:
            self._emit(f"if {length} > 127:")
            with self._block():
                self._emit(f"{length}, position = read_uvarint(view, position - 1)")
        return length

    def _variable(self, type_name: str, nullable: bool, target: str, path: str) -> None:
        length = self._length("h" if type_name == "string" else "i")
        null = "0" if self._flexible else "-1"
        if nullable:
            self._emit(f"if {length} == {null}:")
            with self._block():
                self._emit(f"{target} = None")
            self._emit("else:")
        with self._block() if nullable else nullcontext():
            self._emit(f"end = position + {length}{' - 1' if self._flexible else ''}")
            limit = ""
            if self._flexible and type_name == "string":
                limit = f" or {length} > {STRING_LENGTH_MAX + 1}"
            self._emit(f"if not position <= end <= size{limit}:")
            with self._block():
                self._refuse(f"{path}: bad length")
            self._emit(f"{target} = {_READERS[type_name]}")
            self._emit("position = end")

    def _array(self, field: Field, target: str, path: str) -> None:
        length = self._length("i")
        if field.is_nullable(self._version):
            self._emit(f"if {length} == {'0' if self._flexible else '-1'}:")
            with self._block():
                self._emit(f"{target} = None")
            self._emit("else:")
            with self._block():
                self._elements(field, length, target, path)
        else:
            self._elements(field, length, target, path)

    def _elements(self, field: Field, length: str, target: str, path: str) -> None:
        if self._flexible:
            self._emit(f"{length} -= 1")
        element_size_bytes = self._minimum_size_bytes(field)
        assert element_size_bytes > 0, f"{path}: an element of no bytes would make the array's length unbounded"
        self._emit(f"if not 0 <= {length} <= {ARRAY_LENGTH_UNCHECKED_MAX}:")
        with self._block():
            self._emit(f"check_array_length({length}, size - position, {element_size_bytes})")
        if self._elements_max is not None and self._array_depth >= self._counted_depth:
            self._emit(f"counted += {length}")
            self._emit(f"if counted > {self._elements_max}:")
            with self._block():
                self._refuse(f"{path}: too many elements")
        if field.struct is None and field.type in FIXED_CODES:
            self._emit(f"{target} = list(unpack_{field.type}s[{length}](view, position))")
            self._emit(f"position += {length} * {FIXED_SIZES_BYTES[field.type]}")
            return
        items, item = self._name("items"), self._name("item")
        self._emit(f"{target} = {items} = []")
        self._emit(f"for _ in range({length}):")
        self._array_depth += 1
        with self._block():
            if self._in_slices:
                self._emit("elements += 1")
                self._emit(f"if not elements % {SLICE_ELEMENTS}:")
                with self._block():
                    self._emit("yield")
            if field.struct is not None:
                self._struct(field.struct, item, path)
                self._flush()
            else:
                self._variable(field.type, False, item, path)
            self._emit(f"{items}.append({item})")
        self._array_depth -= 1

    def _minimum_size_bytes(self, field: Field) -> int:
        """Return the minimum encoded size of the field, or of one element if it is an array."""
        if field.struct is not None:
            inner = sum(self._field_size_bytes(each) for each in field.struct.plain_fields(self._version))
            return inner + (1 if self._flexible else 0)
        if field.type in FIXED_SIZES_BYTES:
            return FIXED_SIZES_BYTES[field.type]
        if self._flexible:
            return 1
        return 2 if field.type == "string" else 4

    def _field_size_bytes(self, field: Field) -> int:
        if field.is_array:
            return 1 if self._flexible else 4
        if field.struct is not None and field.is_nullable(self._version):
            return 1
        return self._minimum_size_bytes(field)

    def _refuse(self, reason: str) -> None:
        self._emit(f"raise ProtocolError({reason!r})")
