# SPDX-License-Identifier: Apache-2.0
"""What must be in the wheel and the sdist, and what must not: `python tests/wheel_contents.py FOLDER`."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

#: Endings of one file each that the wheel needs.
NEEDED = (
    "wia_quant/py.typed",
    "wia_quant/_native.pyi",
    "wia_quant/targets/schema.json",
    "wia_quant/targets/wia-cpu.json",
    "wia_quant/targets/example-npu.json",
    "wia_quant/cli/app.py",
)
#: First folders that neither may have: links into the package, and what only the repository needs.
STRAY = ("calibrators", "exporters", "cli")
ONLY_REPOSITORY = ("tests", "benchmarks", "examples", "kernels", "docs", "build")


def problems_of_wheel(names: Sequence[str]) -> list[str]:
    """What is wrong with the names in a wheel; empty when nothing is."""
    found = [f"{name} is missing" for name in NEEDED if name not in names]
    if not any(name.startswith("wia_quant/_native.") and name.endswith((".so", ".pyd")) for name in names):
        found.append("the native module wia_quant/_native is missing")
    tops = {name.split("/")[0] for name in names}
    found += [f"{top}/ should not be in it" for top in (*STRAY, *ONLY_REPOSITORY) if top in tops]
    found += [f"{name} should not be in it" for name in names if "__pycache__" in name or name.endswith(".a")]
    return found


def problems_of_sdist(names: Sequence[str]) -> list[str]:
    """What is wrong with the names in an sdist, its first folder taken off."""
    needed = ("pyproject.toml", "README.md", "LICENSE", "kernels/CMakeLists.txt", "kernels/include/wia/ai011.h")
    found = [f"{name} is missing" for name in needed if name not in names]
    tops = {name.split("/")[0] for name in names}
    found += [f"{top} should not be in it" for top in STRAY if top in tops]
    found += [f"{name} should not be in it" for name in names if name.endswith((".so", ".pyc"))]
    return found


def main(folder: Path) -> int:
    """Print each problem; 0 when there is none and both files are there."""
    problems = []
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        problems.append(f"{folder} holds {len(wheels)} wheels and {len(sdists)} sdists; one of each is wanted")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            problems += [f"{wheel.name}: {problem}" for problem in problems_of_wheel(archive.namelist())]
    for sdist in sdists:
        with tarfile.open(sdist) as archive:
            names = [member.name.partition("/")[2] for member in archive.getmembers()]
        problems += [f"{sdist.name}: {problem}" for problem in problems_of_sdist(names)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
