"""The version that is released: the same everywhere, described, and not released before."""

import re
import subprocess
import tomllib
from pathlib import Path


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def objections_to_version(root: Path, version: str) -> list[str]:
    """Return the place that names another version, or none."""
    source = (root / "src" / "loopwright" / "__init__.py").read_text()
    inside = re.search(r'^__version__ = "(.*)"', source, re.MULTILINE)
    found = list[str]()
    if inside is None or inside[1] != version:
        named = "none" if inside is None else inside[1]
        found.append(f"pyproject.toml has version {version}, loopwright.__version__ is {named}")
    return found


def objections_to_changelog(text: str, version: str) -> list[str]:
    r"""Return what the changelog lacks: a dated section of this version, with content.

    >>> objections_to_changelog("## [Unreleased]\n\n- more\n", "0.1.0")
    ['CHANGELOG.md has no section "## [0.1.0] - YYYY-MM-DD": move what is under Unreleased there']
    """
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    heading = re.compile(rf"\[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d\s*\n")
    own = [section for section in sections if heading.match(section)]
    if not own:
        return [
            f'CHANGELOG.md has no section "## [{version}] - YYYY-MM-DD": '
            "move what is under Unreleased there"
        ]
    return [] if "- " in heading.sub("", own[0]) else [f"its section of {version} is empty"]


def objections_to_tree(root: Path, version: str) -> list[str]:
    """Return why this checkout cannot be tagged."""
    status = _git(root, "status", "--porcelain")
    if status.returncode != 0:
        return [f"git status failed: {status.stderr.strip()}"]
    found = [f"not committed: {line.strip()}" for line in status.stdout.splitlines()]
    if _git(root, "rev-parse", "--verify", "--quiet", f"refs/tags/v{version}").returncode == 0:
        found.append(f"the tag v{version} exists: raise the version in pyproject.toml")
    return found


def commit_of(root: Path) -> str:
    """Return the commit that is checked out, or nothing outside of a repository."""
    return _git(root, "rev-parse", "HEAD").stdout.strip()


def tag(root: Path, version: str, commit: str) -> None:
    """Tag the commit that was checked: another one may be checked out by now."""
    words = ("--annotate", f"v{version}", commit, "--message", f"Loopwright {version}")
    done = _git(root, "tag", *words)
    if done.returncode != 0:
        raise SystemExit(f"git tag failed.\n{done.stderr}")


def _git(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
