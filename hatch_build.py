"""The build hook: compile the walk of tries beside its source where there is a compiler, and say so in the wheel's tag.

    python hatch_build.py

builds it in place, as an editable install does.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any
from zlib import crc32

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # in place, without the build system
    BuildHookInterface = object

SOURCE = Path(__file__).parent / "outlines_phi" / "vocabulary" / "walk.c"
FLAGS = ["-O3", "-std=c99", "-shared", "-fPIC"]


def build() -> Path | None:
    """Compile the source; return the library, ``None`` where there is no compiler or it fails."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    library = SOURCE.with_suffix(".so")
    if not compiler:
        return None
    made = library.with_suffix(f".{os.getpid()}")
    try:
        source = f"-DSOURCE={crc32(SOURCE.read_bytes())}u"
        subprocess.run(
            [*compiler.split(), *FLAGS, source, "-o", str(made), str(SOURCE)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    os.replace(made, library)  # a process that has the old one open keeps it
    return library


def platform_tag() -> str:
    """Return the tag of the platform: with glibc that of its 2.17, which has all that the library calls (``mem*``)."""
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return tag.replace("linux", "manylinux_2_17", 1) if platform.libc_ver()[0] == "glibc" else tag


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc, valid-type]
    """Adds the library to wheels."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before a wheel is packed, or installed in place."""
        library = build() if self.target_name == "wheel" else None
        if library is not None:
            build_data["artifacts"].append(library.relative_to(Path(self.root)).as_posix())
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"


if __name__ == "__main__":
    print(build())
