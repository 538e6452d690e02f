"""Checks of a built wheel and a source distribution, as lists of objections."""

import base64
import csv
import email.parser
import email.policy
import hashlib
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from email.message import EmailMessage
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from release.readme import relative_links

_IN_SDIST = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile")
_LICENCES = ("LICENSE", "src/loopwright/sinks/vendored/uplot/LICENSE")


def build(root: Path, directory: Path) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from it; return their paths, wheel first."""
    command = [sys.executable, "-m", "build", "--outdir", str(directory), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels, sources = list(directory.glob("*.whl")), list(directory.glob("*.tar.gz"))
    if done.returncode != 0 or len(wheels) != 1 or len(sources) != 1:
        raise SystemExit(f"python -m build failed.\n{done.stdout}{done.stderr}")
    return wheels[0], sources[0]


def objections_to_wheel(wheel: Path, root: Path, version: str) -> list[str]:
    """Return what is wrong with a wheel: files, checksums, metadata, licences."""
    try:
        with ZipFile(wheel) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
    except (BadZipFile, OSError) as error:
        return [f"{wheel.name} cannot be read: {error}"]
    information = f"loopwright-{version}.dist-info/"
    if f"{information}METADATA" not in content or f"{information}RECORD" not in content:
        found = sorted(name for name in content if name.endswith("/METADATA"))
        return [
            f"the wheel is not of version {version}: it has {', '.join(found) or 'no METADATA'}"
        ]
    packaged = {name for name in content if not name.startswith(information)}
    source = root / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if _ships(path)}
    return [
        *(f"the wheel lacks {name}" for name in sorted(files - packaged)),
        *(f"the wheel has a stray file: {name}" for name in sorted(packaged - files)),
        *(
            f"{name} differs from the source"
            for name in sorted(files & packaged)
            if content[name] != (source / name).read_bytes()
        ),
        *_damage(content, content[f"{information}RECORD"].decode()),
        *_objections_to_metadata(content, information, version),
    ]


def _ships(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"


def _damage(content: dict[str, bytes], record: str) -> list[str]:
    """Return the files whose checksum is not the one that RECORD has."""
    found = list[str]()
    recorded = {row[0]: row[1] for row in csv.reader(io.StringIO(record)) if len(row) > 1}
    for name, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if not name.endswith(".dist-info/RECORD") and recorded.get(name) != f"sha256={digest}":
            found.append(f"{name}: checksum mismatch with RECORD")
    return found


def _objections_to_metadata(content: dict[str, bytes], information: str, version: str) -> list[str]:
    metadata = _parsed(content[f"{information}METADATA"])
    scripts = content.get(f"{information}entry_points.txt", b"").decode()
    return [
        *(
            [f"METADATA says version {metadata['Version']}, not {version}"]
            if metadata["Version"] != version
            else []
        ),
        *(
            []
            if metadata["Requires-Python"]
            else ["METADATA does not say which Python it requires"]
        ),
        *([] if "loopwright = loopwright.cli.main:main" in scripts else ["the command is missing"]),
        *(
            f"the licence {file} is missing"
            for file in _LICENCES
            if f"{information}licenses/{file}" not in content
        ),
    ]


def _parsed(metadata: bytes) -> EmailMessage:
    parser = email.parser.BytesParser(EmailMessage, policy=email.policy.default)
    return parser.parsebytes(metadata, headersonly=True)


def objections_to_source(source: Path, version: str) -> list[str]:
    """Return what a source distribution lacks, or has and must not."""
    try:
        with tarfile.open(source) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
    except (tarfile.TarError, OSError) as error:
        return [f"{source.name} cannot be read: {error}"]
    wanted = [*_IN_SDIST, "src/loopwright/__init__.py", "tests/conftest.py", "docs/site.py"]
    hidden = {"PKG-INFO", ".gitignore"}
    is_stray = re.compile(r"^(\.(?!gitignore)|runs/|site/|dist/)|__pycache__|\.pyc$").search
    return [
        *([] if source.name == f"loopwright-{version}.tar.gz" else [f"it is named {source.name}"]),
        *(f"the source distribution lacks {name}" for name in wanted if name not in names),
        *(
            f"the source distribution has a stray file: {name}"
            for name in sorted(names - hidden)
            if is_stray(name)
        ),
    ]


def objections_of_twine(artifacts: Sequence[Path]) -> list[str]:
    """Return what `twine check --strict` finds: metadata, and a README that does not render."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, artifacts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = " ".join(f"{done.stdout} {done.stderr}".split())
    return [] if done.returncode == 0 else [f"twine check --strict: {said}"]


def broken_links(wheel: Path, version: str) -> list[str]:
    """Return the links of the description that a package index would not find."""
    with ZipFile(wheel) as archive:
        metadata = archive.read(f"loopwright-{version}.dist-info/METADATA")
    return relative_links(metadata.decode().partition("\n\n")[2])
