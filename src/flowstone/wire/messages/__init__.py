"""The messages of the protocol: `from flowstone.wire.messages import FetchRequest`.

The classes are generated from the schema text beside this file. Decoded arrays are lists, ids 16 bytes, error codes and
times ints; a struct that is absent is None.
"""

from flowstone.wire.messages.generated import *  # noqa: F403  (its __all__ is every class)
