"""A self-contained page with charts: its template, its scripts by hash, its style."""

import base64
import functools
import hashlib
import pkgutil
from collections.abc import Sequence
from typing import Any

import jinja2

_UPLOT = "vendored/uplot/"


def rendered(template: str, **fields: Any) -> str:
    """Return a page of this package; every field is escaped."""
    style = _packaged(f"{_UPLOT}uPlot.min.css") + _packaged("report.css")
    # uPlot's licence must be in every copy, and each page contains a copy.
    library = f"/*\n{_packaged(f'{_UPLOT}LICENSE')}\n*/\n{_packaged(f'{_UPLOT}uPlot.iife.min.js')}"
    code = [library, _packaged("report.js")]
    return (
        _templates()
        .get_template(template)
        .render(policy=_policy(code, style), code=code, style=style, **fields)
    )


def rendered_figures(template: str, figures: Sequence[Any], *, library: str, **fields: Any) -> str:
    """Return a page with figures of plotly, whose code is `library`; every field is escaped.

    Plotly sets styles as attributes and compiles its WebGL shaders: the policy of this page allows
    both, and still no script but these two, and no request.
    """
    style = _packaged("report.css")
    code = [library, _packaged("study.js")]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, code))} 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (
        _templates()
        .get_template(template)
        .render(policy=policy, code=code, style=style, figures=figures, **fields)
    )


@functools.cache
def _templates() -> jinja2.Environment:
    loader = jinja2.PackageLoader("loopwright.sinks", ".")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


@functools.cache
def _packaged(name: str) -> str:
    content = pkgutil.get_data("loopwright.sinks", name)
    if content is None:
        raise FileNotFoundError(name)
    return content.decode()


def _policy(code: Sequence[str], style: str) -> str:
    """Return the content security policy: the scripts and the style of this package, by hash."""
    scripts = " ".join(map(_hash, code))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
