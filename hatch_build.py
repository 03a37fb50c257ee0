"""Compiles the engine's kernels into the package, where there is a C compiler.

Without one the package is complete all the same: the engine then computes with PyTorch's operators alone.
"""

import os
import platform
import runpy
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/addnorm/engine/compiled")
SOURCES = ("around.c", "attention.c", "linear.c", "program.c", "rows.c", "threads.c")


class Kernels(BuildHookInterface[Any]):
    """One library for each level of processor; a wheel that holds them is for this system, and for any Python 3."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say what was built."""
        folder = Path(self.root) / FOLDER
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
        levels: dict[str, tuple[str, ...]] = runpy.run_path(str(folder / "levels.py"))["LEVELS"]
        built = False
        for level, flags in levels.items():
            if flags and platform.machine() not in ("x86_64", "AMD64"):
                continue
            target = folder / f"{level}.so"
            command = [compiler, "-O3", "-fPIC", "-shared", "-pthread", *flags, "-o", str(target)]
            try:
                subprocess.run([*command, *(str(folder / name) for name in SOURCES)], check=True, capture_output=True)
                built = True
            except FileNotFoundError:
                self.app.display_warning(f"no C compiler '{compiler}': the engine will use PyTorch's operators alone")
                break
            except subprocess.CalledProcessError as error:  # a compiler that does not know the instructions
                target.unlink(missing_ok=True)
                reason = error.stderr.decode(errors="replace").splitlines()
                self.app.display_warning(f"kernels for {level} are left out: {reason[0] if reason else error}")
        if built:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
