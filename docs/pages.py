"""Collect the pages of the site and rewrite their links.

In the repository a page links to other pages, pictures and source files by path. On the site pages
have other paths, pictures are copied, and a source file becomes a page that shows its text.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_TOP = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_NOTEBOOKS = {"notebooks/tutorial.py": "tutorial.md"}
_LINK = re.compile(r'(?P<before>\]\(|\b(?:src|href)=")(?P<target>[^)"\s#]+)')
_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")
_PUBLIC = re.compile(r"`lw\.(\w+)")
_FENCE = re.compile(r"(?P<fence>\s*`{3,})\s*(?P<language>\w*)")
_PICTURES = {".gif", ".jpg", ".png", ".svg"}


class BrokenLinkError(Exception):
    """A page links to a missing file."""


def gather(
    root: Path,
    directory: Path,
    made: Mapping[str, str],
    files: Mapping[str, bytes],
    references: Mapping[str, str],
    sections: Mapping[str, str],
) -> None:
    """Write every page to `directory`: those of the repository, and those `made` for the site.

    `files` are the link targets of made pages. `references` maps public names to places: a page
    that says `lw.Trainer` links there. `sections` are appended to pages of the repository.
    """
    texts = {page: page.read_text() + sections.get(_path(root, page), "") for page in written(root)}
    texts |= {root / "docs" / name: text for name, text in made.items()}
    places = {page: place_of(root, page) for page in texts}
    places |= {root / "docs" / name: name for name in files}
    places |= {root / path: place for path, place in _NOTEBOOKS.items()}
    copied: dict[str, bytes] = dict(files)
    for page, text in texts.items():
        here = places[page]

        def rewrite(target: str, page: Path = page, here: str = here) -> str:
            file = Path(os.path.normpath(page.parent / target))
            if file in places:
                return _relative(places[file], here)
            if not (file.is_file() and file.is_relative_to(root)):
                raise BrokenLinkError(f"{_path(root, page)} links to {target}: no such file")
            place = place_of(root, file)
            copied[place] = file.read_bytes() if _is_picture(file) else _shown(root, file)
            return _relative(place, here)

        links = {name: _relative(place, here) for name, place in references.items()}
        _write(directory / here, "\n".join(_rewritten(text, rewrite, links)).encode() + b"\n")
    for place, content in copied.items():
        _write(directory / place, content)


def written(root: Path) -> list[Path]:
    """Return the pages of the repository."""
    return [*(root / name for name in _TOP), *sorted((root / "docs").rglob("*.md"))]


def place_of(root: Path, file: Path) -> str:
    """Return the path on the site of a file of the repository."""
    path = _path(root, file)
    if path in _TOP:
        return _TOP[path]
    if _is_picture(file):
        return f"pictures/{path}"
    if file.suffix == ".md" and path.startswith("docs/"):
        return re.sub(r"README\.md$", "index.md", path.removeprefix("docs/"))
    return f"source/{path}.md"


def _path(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()


def _is_picture(file: Path) -> bool:
    return file.suffix in _PICTURES


def _relative(goal: str, place: str) -> str:
    return os.path.relpath(goal, os.path.dirname(place) or ".")


def _rewritten(text: str, rewrite: Callable[[str], str], links: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a page with rewritten links; code is unchanged."""
    fence = ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if opened and not fence:
            fence = opened["fence"]
            yield fence + opened["language"]  # `continuation` and `notest` are for the tests
        elif fence:
            fence = "" if line.rstrip() == fence else fence
            yield line
        else:
            yield _rewritten_line(line, rewrite, {} if line.startswith("#") else links)


def _rewritten_line(line: str, rewrite: Callable[[str], str], links: Mapping[str, str]) -> str:
    def link(match: re.Match[str]) -> str:
        is_outside = "://" in match["target"] or match["target"].startswith("mailto:")
        return match["before"] + (match["target"] if is_outside else rewrite(match["target"]))

    done, rest = [], line
    while code := _CODE.search(rest):
        done.append(_LINK.sub(link, rest[: code.start()]))
        named = _PUBLIC.match(code[0])
        is_link_text = rest[: code.start()].endswith("[")
        goal = links.get(named[1]) if named and not is_link_text else None
        # GitHub needs `\|` in the code of a table; the site would show the backslash.
        shown = code[0].replace("\\|", "|") if line.startswith("|") else code[0]
        done.append(shown if goal is None else f"[{shown}]({goal})")
        rest = rest[code.end() :]
    return "".join([*done, _LINK.sub(link, rest)])


def _shown(root: Path, file: Path) -> bytes:
    """Return a page with the text of a file."""
    language = {".py": "python", ".md": "markdown", ".toml": "toml"}.get(file.suffix, "text")
    return f"# {_path(root, file)}\n\n````{language}\n{file.read_text()}````\n".encode()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
