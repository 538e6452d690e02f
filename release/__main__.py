"""Build a release, check it, and tag it: `python -m release [--dry-run] [--directory DIST]`.

Nothing is uploaded: the last line is the command that would.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from release import artifacts, environments, versions

ROOT = Path(__file__).parents[1]


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> None:
    """Run every check and print each one's result; tag only if all of them passed."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="check everything, tag nothing")
    parser.add_argument("--directory", type=Path, default=root / "dist", help="where files go")
    parser.add_argument(
        "--python",
        action="append",
        metavar="VERSION",
        help=f"try only this version; repeatable (default: {', '.join(environments.VERSIONS)})",
    )
    asked = parser.parse_args(words)
    version = versions.version_of(root)
    print(f"loopwright {version}")
    failures = _told("version and changelog", lambda: versions.objections_to_version(root, version))
    failures += _told("git", lambda: versions.objections_to_tree(root, version))
    if failures and not asked.dry_run:
        raise SystemExit("\nnot released: correct these first; --dry-run runs all checks anyway")
    with tempfile.TemporaryDirectory(prefix="loopwright-release-") as scratch:
        work = Path(scratch)
        wheel, source = artifacts.build(root, work / "dist")
        failures += _told(
            f"wheel: {wheel.name}, {wheel.stat().st_size:,} bytes",
            lambda: artifacts.objections_to_wheel(wheel, root, version),
        )
        failures += _told(
            f"source: {source.name}, {source.stat().st_size:,} bytes",
            lambda: artifacts.objections_to_source(source, version),
        )
        failures += _told(
            "twine check --strict", lambda: artifacts.objections_of_twine([wheel, source])
        )
        _warn_of_links((root / "README.md").read_text())
        failures += _tried(asked.python or environments.VERSIONS, wheel, work)
        if failures:
            raise SystemExit(f"\nnot released: {len(failures)} problems")
        asked.directory.mkdir(parents=True, exist_ok=True)
        kept = [shutil.copy(file, asked.directory) for file in (wheel, source)]
    if asked.dry_run:
        print(f"\nready, not tagged (--dry-run); files in {asked.directory}")
        return
    versions.tag(root, version)
    print(f"\ntagged v{version}. Nothing was uploaded. To publish, a person runs:")
    print(f"  git push origin v{version}\n  python -m twine upload {' '.join(map(str, kept))}")


def _told(what: str, check: Callable[[], list[str]]) -> list[str]:
    found = check()
    print(f"{'FAILED' if found else 'ok':8}{what}", flush=True)
    for objection in found:
        print(f"        {objection}", flush=True)
    return found


def _warn_of_links(readme: str) -> None:
    links = artifacts.relative_links(readme)
    if links:
        shown = ", ".join(links[:4])
        print(
            f"warning README.md has {len(links)} relative links and pictures ({shown}, ...): a "
            "package index\n        shows the text and breaks these; write them as https://..."
        )


def _tried(wanted: Sequence[str], wheel: Path, work: Path) -> list[str]:
    """Install and train in an environment of each Python; none at all is a failure."""
    found = environments.pythons(wanted)
    failures = list[str]()
    for version, python in found.items():
        if python is None:
            print(f"warning Python {version} was not found: not tried", flush=True)
            continue
        print(f"        Python {version}: {python}", flush=True)

        def use(python: Path = python, version: str = version) -> list[str]:
            return environments.objections_of_use(python, wheel, work / version)

        failures += _told(f"installed and trained with Python {version}", use)
    if not any(found.values()):
        failures.append("no Python to try the wheel with")
        print(f"FAILED  no Python of {', '.join(wanted)} was found")
    return failures


if __name__ == "__main__":
    main()
