"""An immutable map whose changed copy costs the change and not the map: a large base, shared, under a small layer.

With a plain copy of all topics for each one that is created, the ten thousandth costs several times the first. Here a
changed map shares the base and copies the layer only. A layer that has become large is merged into a new base, so
seldom that a change costs about the square root of the map's size.

The visible contents of a map never change. Iterating over all of it merges its layer, because that costs no more.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Final, TypeVar, cast, overload

Key = TypeVar("Key")
Value = TypeVar("Value")
Other = TypeVar("Other")

LAYER_SIZE_MIN = 32
# A value in changes and layers: the key is not in the map, even if it is in the base.
GONE: Final[Any] = object()
_NOT_IN_LAYER: Final[Any] = object()


class LayeredMap(Mapping[Key, Value]):
    __slots__ = ("_base", "_layer", "_size")

    def __init__(self, items: Mapping[Key, Value] | None = None) -> None:
        self._base: dict[Key, Value] = dict(items or {})
        self._layer: dict[Key, Value] = {}
        self._size = len(self._base)

    def changed(self, changes: Mapping[Key, Value]) -> LayeredMap[Key, Value]:
        """Return the map with these keys set, or removed if the value is GONE."""
        size = self._size
        for key, value in changes.items():
            size += (value is not GONE) - (key in self)
        changed: LayeredMap[Key, Value] = LayeredMap.__new__(LayeredMap)
        changed._base, changed._layer, changed._size = self._base, {**self._layer, **changes}, size
        if len(changed._layer) > LAYER_SIZE_MIN and len(changed._layer) ** 2 > 2 * len(self._base):
            changed._merged()
        return changed

    def _merged(self) -> dict[Key, Value]:
        if self._layer:
            merged = self._base | self._layer
            for key in [key for key, value in self._layer.items() if value is GONE]:
                del merged[key]
            # In this order: another thread may read, and must not find the old base without its layer.
            self._base = merged
            self._layer = {}
        return self._base

    def __getitem__(self, key: Key) -> Value:
        value = self._layer.get(key, _NOT_IN_LAYER)
        if value is GONE:
            raise KeyError(key)
        return self._base[key] if value is _NOT_IN_LAYER else cast(Value, value)

    @overload
    def get(self, key: Key) -> Value | None: ...

    @overload
    def get(self, key: Key, default: Value | Other) -> Value | Other: ...

    def get(self, key: Key, default: Any = None) -> Any:
        value = self._layer.get(key, _NOT_IN_LAYER)
        if value is _NOT_IN_LAYER:
            return self._base.get(key, default)
        return default if value is GONE else value

    def __contains__(self, key: object) -> bool:
        value = self._layer.get(cast(Key, key), _NOT_IN_LAYER)
        return key in self._base if value is _NOT_IN_LAYER else value is not GONE

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Key]:
        return iter(self._merged())

    def values(self) -> ValuesView[Value]:
        return self._merged().values()

    def items(self) -> ItemsView[Key, Value]:
        return self._merged().items()

    def __repr__(self) -> str:
        return f"LayeredMap({self._merged()})"
