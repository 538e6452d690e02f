"""What is in the wheel, and what `make release` refuses: broken wheels, wrong versions."""

import base64
import csv
import hashlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from release import __main__ as release
from release import artifacts, environments, versions

ROOT = Path(__file__).parent.parent
VERSION = versions.version_of(ROOT)
INFORMATION = f"loopwright-{VERSION}.dist-info"
Change = Callable[[dict[str, bytes]], None]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = directory.glob("*.whl")
    return built


def changed(wheel: Path, directory: Path, change: Change) -> Path:
    """A copy of a wheel with other content, and a RECORD that fits it."""
    with ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    change(content)
    rows = io.StringIO()
    for name, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        csv.writer(rows).writerow([name, f"sha256={digest}", len(data)])
    record = next((name for name in content if name.endswith("/RECORD")), "RECORD")
    content[record] = rows.getvalue().encode()
    copy = directory / wheel.name
    with ZipFile(copy, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return copy


def test_a_wheel_holds_what_the_package_holds(wheel: Path):
    assert artifacts.objections_to_wheel(wheel, ROOT, VERSION) == []
    assert artifacts.objections_of_twine([wheel]) == []
    with ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    packaged = {name for name in sizes if ".dist-info/" not in name}
    assert "loopwright/py.typed" in packaged
    assert "loopwright/cli/project/task.py.jinja" in packaged
    assert "loopwright/cli/project/gitignore.jinja" in packaged
    data = {name: size for name, size in sizes.items() if "/recipes/data/" in name}
    assert {"earth.jpg", "weather.csv.gz", "README.md"} <= {Path(name).name for name in data}
    assert sum(data.values()) < 1_000_000


def without(name: str) -> Change:
    def change(content: dict[str, bytes]) -> None:
        del content[name]

    return change


def with_more(name: str) -> Change:
    def change(content: dict[str, bytes]) -> None:
        content[name] = b"more\n"

    return change


def other_metadata(old: str, new: str) -> Change:
    def change(content: dict[str, bytes]) -> None:
        name = f"{INFORMATION}/METADATA"
        assert old.encode() in content[name]
        content[name] = content[name].replace(old.encode(), new.encode(), 1)

    return change


BROKEN: dict[str, tuple[Change, str]] = {
    "no template": (
        without("loopwright/cli/project/task.py.jinja"),
        "the wheel lacks loopwright/cli/project/task.py.jinja",
    ),
    "no licence of uPlot": (
        without(f"{INFORMATION}/licenses/src/loopwright/sinks/vendored/uplot/LICENSE"),
        "sinks/vendored/uplot/LICENSE is missing",
    ),
    "no licence": (without(f"{INFORMATION}/licenses/LICENSE"), "the licence LICENSE is missing"),
    "no command": (without(f"{INFORMATION}/entry_points.txt"), "the command is missing"),
    "no metadata": (without(f"{INFORMATION}/METADATA"), "it has no METADATA"),
    "tests": (with_more("tests/test_wheel.py"), "a stray file: tests/test_wheel.py"),
    "a stray file": (with_more("loopwright/notes.txt"), "a stray file: loopwright/notes.txt"),
    "other content": (with_more("loopwright/errors.py"), "errors.py differs from the source"),
    "another version": (
        other_metadata(f"Version: {VERSION}", "Version: 9.9.9"),
        f"METADATA says version 9.9.9, not {VERSION}",
    ),
    "any Python": (other_metadata("Requires-Python:", "X-Python:"), "which Python it requires"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_wheel_is_refused(what: str, wheel: Path, tmp_path: Path):
    change, said = BROKEN[what]
    found = artifacts.objections_to_wheel(changed(wheel, tmp_path, change), ROOT, VERSION)
    assert any(said in objection for objection in found), found


def test_a_wheel_with_a_readme_that_does_not_render_is_refused(wheel: Path, tmp_path: Path):
    rst = other_metadata(
        "Description-Content-Type: text/markdown", "Description-Content-Type: text/x-rst"
    )
    (objection,) = artifacts.objections_of_twine([changed(wheel, tmp_path, rst)])
    assert "long_description" in objection


def test_a_damaged_wheel_is_refused(wheel: Path, tmp_path: Path):
    copy = tmp_path / wheel.name
    with ZipFile(wheel) as archive, ZipFile(copy, "w") as target:
        for name in archive.namelist():
            data = archive.read(name)
            target.writestr(name, data.replace(b",", b";") if name.endswith("RECORD") else data)
    found = artifacts.objections_to_wheel(copy, ROOT, VERSION)
    assert any("checksum mismatch with RECORD" in objection for objection in found)
    copy.write_bytes(wheel.read_bytes()[:1000])
    (objection,) = artifacts.objections_to_wheel(copy, ROOT, VERSION)
    assert "cannot be read" in objection


def git(directory: Path, *words: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *own, *words], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository, in which version 1.2.0 is ready."""
    package = tmp_path / "src" / "loopwright"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.0] - 2026-11-17\n\n- New.\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "First")
    return tmp_path


def test_a_version_is_the_same_everywhere_and_has_not_been_released(checkout: Path):
    assert versions.objections_to_version(checkout, "1.2.0") == []
    assert versions.objections_to_tree(checkout, "1.2.0") == []
    (said,) = versions.objections_to_version(checkout, "1.3.0")[:1]
    assert said == "pyproject.toml has version 1.3.0, loopwright.__version__ is 1.2.0"
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n\n- New.\n\n## [1.2.0] - 2026-11-17\n")
    assert versions.objections_to_version(checkout, "1.2.0") == ["its section of 1.2.0 is empty"]
    assert versions.objections_to_tree(checkout, "1.2.0") == ["not committed: M CHANGELOG.md"]
    git(checkout, "tag", "v1.2.0")
    assert "the tag v1.2.0 exists" in versions.objections_to_tree(checkout, "1.2.0")[-1]


def test_a_release_that_is_not_ready_builds_and_tags_nothing(
    checkout: Path, capsys: pytest.CaptureFixture[str]
):
    (checkout / "CHANGELOG.md").write_text("# Changelog\n")
    with pytest.raises(SystemExit, match="not released: correct these first"):
        release.main([], root=checkout)
    said = capsys.readouterr().out
    assert 'no section "## [1.2.0] - YYYY-MM-DD"' in said
    assert "not committed: M CHANGELOG.md" in said
    tags = subprocess.run(["git", "tag"], cwd=checkout, capture_output=True, text=True, check=True)
    assert tags.stdout == ""
    assert not (checkout / "dist").exists()


def test_pythons_are_found_and_those_that_are_missing_are_named():
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = environments.pythons([own, "9.9"])
    assert found["9.9"] is None
    python = found[own]
    if python is not None:
        asked = [str(python), "-c", "import sys; print(sys.version_info[1])"]
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert int(told) == sys.version_info[1]


def test_links_of_the_readme_that_an_index_breaks_are_listed():
    links = artifacts.relative_links((ROOT / "README.md").read_text())
    assert "docs/features.md" in links
    assert "docs/screens/killed.svg" in links
    assert not [link for link in links if link.startswith("http")]
