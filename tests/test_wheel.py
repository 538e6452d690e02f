"""What is in the wheel: the package, its types, the recipes' data, and nothing of the tests."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent


def test_a_wheel_holds_what_the_package_holds(tmp_path: Path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    packaged = {name for name in sizes if ".dist-info/" not in name}
    source = ROOT / "src"
    files = [path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert packaged == {path.relative_to(source).as_posix() for path in files}
    assert "loopwright/py.typed" in packaged
    licences = [name for name in sizes if ".dist-info/licenses/" in name]
    assert any(name.endswith("vendored/uplot/LICENSE") for name in licences)
    data = {name: size for name, size in sizes.items() if "/recipes/data/" in name}
    assert {"earth.jpg", "weather.csv.gz", "README.md"} <= {Path(name).name for name in data}
    assert sum(data.values()) < 1_000_000
