"""Execute a notebook that is stored as a Python file, with nbconvert, and make a page of it."""

import base64
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_SECONDS = 600
_NOTICE = re.compile(
    r"WARNING: All log messages before absl|[IWE]\d{4} |\d{4}-\d\d-\d\d |To enable"
)


class NotebookError(Exception):
    """A cell of a notebook raised an exception."""


@dataclass(frozen=True)
class Executed:
    """A notebook with the outputs of its cells."""

    name: str
    content: Any

    @property
    def markdown(self) -> str:
        """The notebook as a Markdown page."""
        parts: list[str] = []
        for number, cell in enumerate(self.content.cells):
            if cell.cell_type == "markdown":
                parts.append(cell.source)
                continue
            parts.append(f"```python\n{cell.source}\n```")
            parts += [self._shown(number, at, output) for at, output in enumerate(cell.outputs)]
        return "\n\n".join(parts) + "\n"

    def _shown(self, cell: int, at: int, output: Any) -> str:
        if output.output_type == "stream":
            return f"```text\n{output.text.rstrip()}\n```"
        if "image/png" in output.data:
            return f"![Output of the cell]({self._picture(cell, at)})"
        if "text/html" in output.data:
            # In one line: an empty line would end the HTML, and Markdown would begin.
            return f'<div class="cell-output">{" ".join(output.data["text/html"].split())}</div>'
        return f"```text\n{output.data['text/plain']}\n```"

    @property
    def files(self) -> dict[str, bytes]:
        """The link targets of the page by name: its pictures, and the notebook for Jupyter."""
        import nbformat

        found = {f"{self.name}.ipynb": nbformat.writes(self.content).encode()}
        for name, picture in self._pictures():
            found[name] = base64.b64decode(picture)
        return found

    def _pictures(self) -> Iterator[tuple[str, str]]:
        for number, cell in enumerate(self.content.cells):
            for at, output in enumerate(cell.get("outputs", [])):
                picture = output.get("data", {}).get("image/png")
                if picture is not None:
                    yield self._picture(number, at), picture

    def _picture(self, cell: int, at: int) -> str:
        return f"{self.name}-{cell}-{at}.png"


def execute(path: Path) -> Executed:
    """Run every cell in a kernel, as `jupyter nbconvert --execute` does; raise if a cell raises."""
    import jupytext  # needed only to build or test the site
    import nbformat

    with tempfile.TemporaryDirectory(prefix="loopwright-notebook-") as directory:
        file = Path(directory) / f"{path.stem}.ipynb"
        jupytext.write(jupytext.read(path), file)
        command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--inplace", "--execute"]
        options = [f"--ExecutePreprocessor.timeout={_MOST_SECONDS}", "--log-level=ERROR"]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [*command, *options, str(file)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise NotebookError(f"{path.name} was not executed.\n{done.stderr[-4000:]}")
        content = nbformat.read(file, as_version=4)
    for cell in content.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_notice(output)]
    return Executed(path.stem, content)


def _is_notice(output: Any) -> bool:
    """Return whether an output is what TensorFlow's libraries log about the machine."""
    if output.get("name") != "stderr":
        return False
    return all(_NOTICE.match(line) for line in output.text.splitlines() if line.strip())
