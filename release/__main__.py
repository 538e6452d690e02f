"""Build a release, check it, install and use it with every Python, and tag the commit.

`--dry-run` does all of it but the tag. It needs no dated section in CHANGELOG.md and no clean
tree: it lists what a release would still refuse. Nothing is ever uploaded: the last line is the
command that would.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from release import artifacts, environments, versions

ROOT = Path(__file__).parents[1]


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> None:
    """Run every check and print each one's result; tag only if all of them passed."""
    asked = _arguments(words, root)
    began = time.monotonic()
    version, commit = versions.version_of(root), versions.commit_of(root)
    found = environments.pythons(asked.python or environments.VERSIONS)
    print(f"loopwright {version}")
    failures = _told("version", versions.objections_to_version(root, version))
    history = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    bad = "later" if asked.dry_run else "FAILED"
    postponed = [
        *_told("changelog", versions.objections_to_changelog(history, version), bad),
        *_told("git", versions.objections_to_tree(root, version), bad),
        *_told("Pythons", environments.objections_to_pythons(found), bad),
    ]
    if not asked.dry_run and failures + postponed:
        raise SystemExit("\nnot released: correct these first; --dry-run runs all checks anyway")
    with tempfile.TemporaryDirectory(prefix="loopwright-release-") as scratch:
        built = artifacts.build(root, Path(scratch) / "dist")
        failures += _checked(*built, root, version)
        for name, python in found.items():
            if python is not None:
                print(f"        Python {name}: {python}", flush=True)
                directory, wheels = Path(scratch) / name, asked.wheels / name
                objections = environments.objections_of_use(python, built[0], directory, wheels)
                failures += _told(f"installed and used with Python {name}", objections)
        took = f"{(time.monotonic() - began) / 60:.1f} minutes"
        if failures:
            raise SystemExit(f"\nnot released: {len(failures)} problems, after {took}")
        asked.directory.mkdir(parents=True, exist_ok=True)
        kept = [shutil.copy(file, asked.directory) for file in built]
    print(f"\nevery check passed in {took}; files in {asked.directory}")
    if asked.dry_run:
        print("not tagged (--dry-run)" + (", and a release would be refused:" if postponed else ""))
        print("".join(f"  {objection}\n" for objection in postponed), end="")
        return
    versions.tag(root, version, commit)
    print(f"tagged v{version}. Nothing was uploaded. To publish, a person runs:")
    print(f"  git push origin v{version}\n  python -m twine upload {' '.join(map(str, kept))}")


def _arguments(words: Sequence[str] | None, root: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything and tag nothing; CHANGELOG.md needs no dated section",
    )
    parser.add_argument(
        "--directory", type=Path, default=root / "dist", help="for wheel and source (dist/)"
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        default=root / ".wheels",
        help="keeps what pip downloads: about 1 GB for each Python (.wheels/)",
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="VERSION",
        help=f"use only this version; repeatable (default: {', '.join(environments.VERSIONS)})",
    )
    return parser.parse_args(words)


def _checked(wheel: Path, source: Path, root: Path, version: str) -> list[str]:
    """Check the files, and warn of links that a package index breaks."""
    failures = [
        *_told(
            f"wheel: {wheel.name}, {wheel.stat().st_size:,} bytes",
            artifacts.objections_to_wheel(wheel, root, version),
        ),
        *_told(
            f"source: {source.name}, {source.stat().st_size:,} bytes",
            artifacts.objections_to_source(source, version),
        ),
        *_told("twine check --strict", artifacts.objections_of_twine([wheel, source])),
    ]
    links = [] if failures else artifacts.broken_links(wheel, version)
    _told(f"links of the README: {len(links)} are relative", _advice(links), "warning")
    return failures


def _advice(links: Sequence[str]) -> list[str]:
    if not links:
        return []
    return [
        f"a package index breaks them: {', '.join(links[:3])}, ...",
        "they become absolute when pyproject.toml names the repository:",
        "    [project.urls]",
        '    Source = "https://HOST/OWNER/loopwright"',
        "[tool.hatch.metadata.hooks.custom] there has the addresses of files and pictures below it",
    ]


def _told(what: str, objections: list[str], bad: str = "FAILED") -> list[str]:
    print(f"{bad if objections else 'ok':8}{what}", flush=True)
    for objection in objections:
        print(f"        {objection}", flush=True)
    return objections


if __name__ == "__main__":
    main()
