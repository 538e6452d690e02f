"""The README as a package index shows it: relative links lead to the project's source.

hatchling calls it for every build: `[tool.hatch.metadata.hooks.custom]` in pyproject.toml.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any, final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"""(\]\(|\b(?:src|href)=")(?!https?://|\#|mailto:)([^)"\s]+)""")
_PICTURES = (".gif", ".jpg", ".png", ".svg")


@final
class IndexReadme(MetadataHookInterface):
    """Takes README.md as the description, with absolute links if `[project.urls]` has Source."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        if source is not None:
            known = {"source": source.rstrip("/"), "version": metadata["version"]}
            text = with_absolute_links(text, self.config["files"], self.config["pictures"], known)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, files: str, pictures: str, known: dict[str, str]) -> str:
    """Return a README whose relative links are addresses, made by two patterns.

    >>> text = '[a](docs/a.md#b) <img src="c.png"> [d](https://d.org)'
    >>> with_absolute_links(text, "{source}/see/{path}", "{source}/raw/{path}", {"source": "x:"})
    '[a](x:/see/docs/a.md#b) <img src="x:/raw/c.png"> [d](https://d.org)'
    """

    def absolute(found: re.Match[str]) -> str:
        path = found[2].removeprefix("./")
        is_picture = PurePosixPath(path).suffix in _PICTURES
        return found[1] + (pictures if is_picture else files).format(path=path, **known)

    parts = _FENCE.split(text)
    return "".join(
        _LINK.sub(absolute, part) if n % 2 == 0 else part for n, part in enumerate(parts)
    )


def relative_links(text: str) -> list[str]:
    """Return the targets in a README that a package index would not find.

    >>> relative_links('[a](docs/a.md) [b](https://b.org) <img src="c.png">')
    ['docs/a.md', 'c.png']
    """
    found = [target for part in _FENCE.split(text)[::2] for _, target in _LINK.findall(part)]
    return list(dict.fromkeys(found))
