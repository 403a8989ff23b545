"""The messages of the protocol: `from flowstone.wire.messages import FetchRequest`.

The classes are generated from the schema files in this directory. Decoded arrays are lists; ids are 16 bytes; error
codes and times are ints; an absent struct is None.
"""

from flowstone.wire.messages.generated import *  # noqa: F403  (its __all__ is every class)
