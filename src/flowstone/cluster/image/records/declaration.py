"""Declarations of metadata record types, and their conversion to and from JSON.

A record type is one class decorated with `metadata_record`. It declares
- its fields, each with its JSON form (`stored`) and the record version that introduced it,
- `levels`: for each record version, the metadata level (`cluster.image.features`) from which it may be written,
- `apply`: how it changes the image, and
- `difference`: which records of its type lead from one image to a later one. A snapshot is the difference from the
  empty image.

A record is stored in the oldest version that can hold it, so that members of a former release understand what does not
need a newer one. Its JSON value carries its type's name and version. A broker that meets a type or version it does not
know raises `UnknownRecord` and stops, instead of running on part of the metadata.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.errors import StorageFault

Json = dict[str, Any]


class UnknownRecord(StorageFault):
    """The metadata log holds a record of a newer release. The log is sound, but this release must not write to it."""


class Form(NamedTuple):
    """Conversion of a field's value to JSON and back."""

    write: Callable[[Any], Any] | None
    read: Callable[[Any], Any] | None


# The value is stored in JSON unchanged.
PLAIN = Form(None, None)


# The fields by name. None: the value is JSON as it is.
_Conversions = Sequence[tuple[str, Callable[[Any], Any] | None]]


class MetadataRecord:
    """The base of all records."""

    __slots__ = ()
    # Set by `metadata_record`, each for every version: its level, and how its fields become JSON and are read from it.
    LEVELS: ClassVar[Sequence[int]]
    WRITERS: ClassVar[Sequence[_Conversions]]
    READERS: ClassVar[Sequence[_Conversions]]

    def apply(self, draft: Draft) -> None:
        """Change the image. Raises StorageFault if the record does not fit it: the log is damaged then."""
        raise NotImplementedError

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterable[MetadataRecord]:
        """Return this type's records among those that lead from one image to a later one.

        Types are called in the order of their declaration.
        """
        return ()

    @property
    def version(self) -> int:
        """Return the oldest version of the record's type that can hold it."""
        if len(self.LEVELS) == 1:
            return 1
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return max(_since(each) for each in fields if _since(each) == 1 or getattr(self, each.name) != each.default)

    @property
    def level(self) -> int:
        """Return the metadata level from which the record may be written."""
        return self.LEVELS[self.version - 1]

    def to_json(self, version: int) -> Json:
        """Return the fields that this version has."""
        return {
            name: getattr(self, name) if write is None else write(getattr(self, name))
            for name, write in self.WRITERS[version - 1]
        }

    @classmethod
    def from_json(cls, value: Json, version: int) -> Self:
        """Return the record that a JSON value of this version stands for; later versions' fields have defaults."""
        return cls(*[read(value[name]) if read else value[name] for name, read in cls.READERS[version - 1]])


Declared = TypeVar("Declared", bound=MetadataRecord)

# Every record type of this release by its name, in the order of declaration.
RECORD_TYPES: dict[str, type[MetadataRecord]] = {}


def stored(form: Form = PLAIN, *, since: int = 1, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field's JSON form. One that a later record version introduced needs a default, for older records."""
    assert since == 1 or default is not dataclasses.MISSING
    return dataclasses.field(default=default, metadata={"form": form, "since": since})


@dataclass_transform(frozen_default=True, field_specifiers=(stored,))
def metadata_record(*, levels: Sequence[int] = (1,)) -> Callable[[type[Declared]], type[Declared]]:
    """Return a decorator that makes a class a frozen dataclass and a record type that `decode` knows by its name."""

    def declare(cls: type[Declared]) -> type[Declared]:
        declared = dataclasses.dataclass(frozen=True, slots=True)(cls)
        declared.LEVELS = levels
        fields = dataclasses.fields(declared)  # type: ignore[arg-type]
        versions = [[each for each in fields if _since(each) <= version] for version in range(1, len(levels) + 1)]
        declared.WRITERS = [[(each.name, _form(each).write) for each in version] for version in versions]
        declared.READERS = [[(each.name, _form(each).read) for each in version] for version in versions]
        assert declared.__name__ not in RECORD_TYPES
        RECORD_TYPES[declared.__name__] = declared
        return declared

    return declare


def _since(field: dataclasses.Field[Any]) -> int:
    return int(field.metadata.get("since", 1))


def _form(field: dataclasses.Field[Any]) -> Form:
    form: Form = field.metadata.get("form", PLAIN)
    return form


def encode(record: MetadataRecord) -> bytes:
    version = record.version
    value = {"type": type(record).__name__, "version": version, **record.to_json(version)}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode(data: bytes) -> MetadataRecord:
    """Return the stored record. Raises StorageFault if it is malformed, UnknownRecord if a newer release wrote it."""
    try:
        value = json.loads(data)
        name, version = value["type"], value["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageFault(f"a metadata record is not JSON with a type and a version: {error!r}") from error
    declared = RECORD_TYPES.get(name) if isinstance(name, str) else None
    if declared is None:
        raise UnknownRecord(_upgrade(f"a record of unknown type {name!r}"))
    if version != 1 and version not in range(1, len(declared.LEVELS) + 1):
        known = "version 1" if len(declared.LEVELS) == 1 else f"versions 1 to {len(declared.LEVELS)}"
        raise UnknownRecord(_upgrade(f"a record {name} of version {version}, of which this release knows {known}"))
    try:
        return declared.from_json(value, version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageFault(f"a {name} record of the metadata log is malformed: {error!r}") from error


def _upgrade(found: str) -> str:
    return (
        f"the metadata log holds {found}: a newer release wrote it. This broker must not go on without it, and has "
        "left the log as it is. Start the release that the other brokers run, or ran last"
    )
