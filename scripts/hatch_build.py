"""Build hook that compiles the native kernel into the wheel. Without a compiler the wheel contains only Python."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(self.root, "src/flowstone/kernel/build.py")
        spec = importlib.util.spec_from_file_location("flowstone_kernel_build", source)
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        library = build.compile_kernel()
        if library is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = False
            build_data["tag"] = build.wheel_tag()
            build_data["artifacts"].append("src/flowstone/kernel/*.so")
            build_data["artifacts"].append("src/flowstone/kernel/*.dylib")
