"""Execute a notebook that is stored as a Python file, and collect the outputs of its cells.

The cells run one after the other in this process. This needs no Jupyter kernel, and errors are
raised unchanged.
"""

import ast
import base64
import contextlib
import io
import linecache
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
            for output in cell.outputs:
                if output.output_type == "stream":
                    parts.append(f"```text\n{output.text.rstrip()}\n```")
                elif "image/png" in output.data:
                    parts.append(f"![Output of the cell]({self._picture(number)})")
                else:
                    parts.append(f"```text\n{output.data['text/plain']}\n```")
        return "\n\n".join(parts) + "\n"

    @property
    def files(self) -> dict[str, bytes]:
        """The link targets of the page by name: its pictures, and the notebook for Jupyter."""
        import nbformat

        found = {f"{self.name}.ipynb": nbformat.writes(self.content).encode()}
        for number, cell in enumerate(self.content.cells):
            for output in cell.get("outputs", []):
                picture = output.get("data", {}).get("image/png")
                if picture is not None:
                    found[self._picture(number)] = base64.b64decode(picture)
        return found

    def _picture(self, cell: int) -> str:
        return f"{self.name}-{cell}.png"


def execute(path: Path) -> Executed:
    """Run every cell; an exception in a cell is raised."""
    import jupytext  # needed only to build or test the site

    content = jupytext.read(path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(content.cells):
        if cell.cell_type == "code":
            cell.execution_count = number + 1
            cell.outputs = _outputs(cell.source, f"<{path.name}, cell {number}>", names, number + 1)
    return Executed(path.stem, content)


def _outputs(source: str, name: str, names: dict[str, Any], count: int) -> list[Any]:
    from nbformat import v4

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = _run(source, name, names)
    outputs = []
    if printed.getvalue():
        outputs.append(v4.new_output("stream", text=printed.getvalue()))
    if value is not None:
        data = {"text/plain": repr(value)}
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        outputs.append(v4.new_output("execute_result", data=data, execution_count=count))
    return outputs


def _run(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line if that is an expression."""
    # TensorFlow reads the source of the functions it compiles.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        exec(compile(source, name, "exec"), names)
        return None
    exec(compile(ast.Module(body, []), name, "exec"), names)
    return eval(compile(ast.Expression(last.value), name, "eval"), names)
