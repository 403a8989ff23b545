"""Determination of the extent of compressed frames: native code if the library is built, otherwise Python."""

from __future__ import annotations

from flowstone.kernel.frames_twin import Frame, FrameStatus

try:
    from flowstone.kernel.frames_native import scan_lz4_frame, scan_zstd_frame
except ImportError:
    from flowstone.kernel.frames_twin import scan_lz4_frame, scan_zstd_frame

__all__ = ["Frame", "FrameStatus", "scan_lz4_frame", "scan_zstd_frame"]
