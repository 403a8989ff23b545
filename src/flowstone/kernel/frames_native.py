"""Native determination of a compressed frame's extent.

Importing it raises ImportError if the library lacks the calls.

The calls keep the GIL, because each block costs only a few nanoseconds.
"""

from __future__ import annotations

import ctypes
from struct import Struct
from typing import Any

from flowstone.kernel.frames_twin import Frame, FrameStatus
from flowstone.kernel.native import _run as run
from flowstone.kernel.native import holding_library as library
from flowstone.types import Bytes

# struct scan_frame_call of frames.c: the argument, then the results.
_ScanCall = ctypes.c_int64 * 7
_RESULTS = Struct("=6q")
_RESULTS_POSITION = 8
_STATUSES = tuple(FrameStatus)

try:
    _scan_zstd, _scan_lz4 = library.flowstone_scan_zstd_frame, library.flowstone_scan_lz4_frame
except AttributeError as error:
    raise ImportError(f"the native kernel does not scan frames: {error}") from error
for _scan in (_scan_zstd, _scan_lz4):
    _scan.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    _scan.restype = None


def scan_zstd_frame(data: Bytes) -> Frame:
    return _call(_scan_zstd, data)


def scan_lz4_frame(data: Bytes) -> Frame:
    return _call(_scan_lz4, data)


def _call(scan: Any, data: Bytes) -> Frame:
    call = _ScanCall(len(data))
    run(scan, data, call)
    status, *extent = _RESULTS.unpack_from(call, _RESULTS_POSITION)
    return Frame(_STATUSES[status], *extent) if not status else Frame(_STATUSES[status], 0, 0, 0, 0, 0)
