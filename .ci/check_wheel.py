"""Refuse a wheel that lacks a file of the package: code, py.typed and the pocket suite.

python .ci/check_wheel.py dist/*.whl
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def missing(wheel: Path, package: Path) -> list[str]:
    """Files of the package's folder that the wheel does not hold."""
    held = set(zipfile.ZipFile(wheel).namelist())
    own = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    wanted = {path.relative_to(package.parent).as_posix() for path in own}
    return sorted((wanted | {f"{package.name}/py.typed"}) - held)


if __name__ == "__main__":
    wheel = Path(sys.argv[1])
    lacking = missing(wheel, Path(__file__).resolve().parent.parent / "tl_lifehist")
    print(f"wheel: {wheel.stat().st_size / 1e6:.1f} MB; missing: {lacking or 'none'}")
    sys.exit(bool(lacking))
