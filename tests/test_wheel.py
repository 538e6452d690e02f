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
from release import artifacts, environments, readme, versions

ROOT = Path(__file__).parent.parent
VERSION = versions.version_of(ROOT)
INFORMATION = f"loopwright-{VERSION}.dist-info"
Change = Callable[[dict[str, bytes]], None]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def build_wheel(root: Path, directory: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
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
    assert not [name for name in packaged if "earth" in name or "gan" in name.split("/")[-1]]


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
    (said,) = versions.objections_to_version(checkout, "1.3.0")
    assert said == "pyproject.toml has version 1.3.0, loopwright.__version__ is 1.2.0"
    changelog = "## [Unreleased]\n\n- New.\n\n## [1.2.0] - 2026-11-17\n"
    (said,) = versions.objections_to_changelog(changelog, "1.2.0")
    assert said == "its section of 1.2.0 is empty"


def not_dated(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n- New.\n")
    git(checkout, "commit", "--quiet", "--all", "--message", "Second")


def not_committed(checkout: Path) -> None:
    (checkout / "notes.txt").touch()


def tagged(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.0")


def outside_of_git(checkout: Path) -> None:
    (checkout / ".git").rename(checkout / "other")


NOT_READY: dict[str, tuple[Callable[[Path], None], str]] = {
    "no dated section": (not_dated, 'no section "## [1.2.0] - YYYY-MM-DD": move what is under'),
    "a dirty tree": (not_committed, "not committed: ?? notes.txt"),
    "a tag that exists": (tagged, "the tag v1.2.0 exists: raise the version"),
    "no repository": (outside_of_git, "git status failed: fatal: not a git repository"),
}


@pytest.mark.parametrize("what", NOT_READY)
def test_a_release_that_is_not_ready_builds_and_tags_nothing(
    what: str,
    checkout: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.parent))
    change, said = NOT_READY[what]
    change(checkout)
    before = listed_tags(checkout)
    with pytest.raises(SystemExit, match="not released: correct these first"):
        release.main([], root=checkout)
    assert said in capsys.readouterr().out
    assert listed_tags(checkout) == before
    assert not (checkout / "dist").exists()


def listed_tags(checkout: Path) -> str:
    asked = ["git", "tag"]
    return subprocess.run(asked, cwd=checkout, capture_output=True, text=True, check=False).stdout


def test_a_dry_run_lists_what_a_release_would_refuse_and_tags_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    # An isolated build downloads hatchling.
    monkeypatch.setattr(artifacts, "build", built_here)
    before = listed_tags(ROOT)
    directory = tmp_path / "dist"
    release.main(["--dry-run", "--directory", str(directory), "--python", "9.9"])
    said = capsys.readouterr().out
    assert "later   Pythons\n        Python 9.9 was not found" in said
    assert "FAILED" not in said
    refused = said.partition("not tagged (--dry-run), and a release would be refused:\n")[2]
    assert "  Python 9.9 was not found: install it" in refused
    assert len(list(directory.iterdir())) == 2
    assert listed_tags(ROOT) == before


def built_here(root: Path, directory: Path) -> tuple[Path, Path]:
    wheel = build_wheel(root, directory)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(directory)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    (source,) = directory.glob("*.tar.gz")
    return wheel, source


def test_the_tag_is_on_the_commit_that_was_checked(checkout: Path):
    checked = versions.commit_of(checkout)
    not_dated(checkout)
    git(checkout, "config", "user.name", "a")
    git(checkout, "config", "user.email", "a@b.c")
    versions.tag(checkout, "1.2.0", checked)
    asked = ["git", "rev-parse", "v1.2.0^{commit}"]
    told = subprocess.run(asked, cwd=checkout, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == checked != versions.commit_of(checkout)


def test_pythons_are_found_and_those_that_are_missing_are_named():
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = environments.pythons([own, "9.9"])
    assert found["9.9"] is None
    assert "Python 9.9 was not found" in environments.objections_to_pythons(found)[-1]
    python = found[own]
    if python is not None:
        asked = [str(python), "-c", "import sys; print(sys.version_info[1])"]
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert int(told) == sys.version_info[1]


def test_a_command_that_ends_or_speaks_otherwise_is_an_objection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    refusing = (sys.executable, "-c", "print('pip install\\nthis'); raise SystemExit(2)")
    told = environments.Use(refusing, tmp_path, code=2, says=("pip install this",))
    assert environments.objection_to(told, {}) is None
    failing = environments.objection_to(environments.Use(refusing, tmp_path), {})
    assert failing is not None
    assert "exit code 2, expected 0" in failing
    silent = environments.Use(refusing, tmp_path, code=2, says=("this", "that"))
    assert "does not say that" in (environments.objection_to(silent, {}) or "")
    monkeypatch.setattr(environments, "_SECONDS_BETWEEN_LINES", 0.2)
    slow = (sys.executable, "-uc", "import time; print('half way'); time.sleep(1)")
    assert environments.objection_to(environments.Use(slow, tmp_path), {}) is None
    assert "... half way" in capsys.readouterr().out


def test_links_of_the_readme_that_an_index_breaks_are_listed(wheel: Path):
    links = artifacts.broken_links(wheel, VERSION)
    assert "docs/features.md" in links
    assert "docs/screens/killed.svg" in links
    assert not [link for link in links if link.startswith("http")]


def test_links_are_absolute_when_the_project_names_its_source(tmp_path: Path):
    own = (ROOT / "pyproject.toml").read_text()
    urls = '[project.urls]\nSource = "https://code.example/us/loopwright/"\n\n[project.scripts]'
    (tmp_path / "pyproject.toml").write_text(own.replace("[project.scripts]", urls, 1))
    for name in ("README.md", "LICENSE", "release", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    wheel = build_wheel(tmp_path, tmp_path / "dist")
    assert artifacts.broken_links(wheel, VERSION) == []
    with ZipFile(wheel) as archive:
        text = archive.read(f"{INFORMATION}/METADATA").decode()
    of_version = f"https://code.example/us/loopwright/{{}}/v{VERSION}"
    assert f"({of_version.format('blob')}/docs/features.md#works-with)" in text
    assert f'<img src="{of_version.format("raw")}/docs/screens/killed.svg"' in text
    assert f"![Steps per second as multiples of Keras fit]({of_version.format('raw')}/" in text


def test_code_in_the_readme_has_no_links():
    text = "```python\ny = layers[0](x)\n```\n[a](b.md)\n"
    assert readme.relative_links(text) == ["b.md"]
    changed = readme.with_absolute_links(text, "{path}!", "{path}?", {})
    assert changed == text.replace("b.md", "b.md!")
