"""Sphinx's settings for the site. `docs/build.py` calls it on a prepared copy of this folder."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Annotated, Any, get_origin

import pivotrl
from pivotrl import __version__

project = "PivotRL"
copyright = "The PivotRL authors, Apache-2.0"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"PivotRL {__version__}"
html_show_sphinx = html_show_sourcelink = html_copy_source = False
highlight_language = "none"
myst_heading_anchors = 4
autodoc_class_signature = "separated"  # a config of forty fields is read by its fields, not in one line
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True, "exclude-members": "__init__,__new__"}
_CODE = re.compile(r"(`[^`]+`)")


def as_rst(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text with `code` in single backticks: escape what reStructuredText takes for marks."""
    text = _CODE.split("\n".join(lines))
    text[::2] = [re.sub(r"([*|_\\])", r"\\\1", part) for part in text[::2]]
    text[1::2] = [f"`{part}`" for part in text[1::2]]
    lines[:] = "".join(text).split("\n")


def with_default(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """What a field is if nothing is said, where that is a plain value."""
    owner, _, field = name.removeprefix("pivotrl.").rpartition(".")
    of = getattr(pivotrl, owner, None) if what == "attribute" else None
    for one in dataclasses.fields(of) if dataclasses.is_dataclass(of) else ():
        if one.name == field and isinstance(one.default, int | float | str | Path | None):
            default = str(one.default) if isinstance(one.default, Path) else one.default
            lines += ["", f"Default: `{default!r}`."]


def plain_types() -> None:
    """Fields are shown with their types, without what tyro and pydantic read from them besides."""
    values = [getattr(pivotrl, name) for name in dir(pivotrl)[1:]]  # loads all modules
    for module in [module for name, module in sys.modules.items() if name.startswith("pivotrl.")]:
        for name, value in [*vars(module).items()]:
            if get_origin(value) is Annotated:
                setattr(module, name, value.__origin__)
    for value in values:
        if dataclasses.is_dataclass(value):
            said = value.__annotations__
            said |= {name: re.sub(r"^Annotated\[(.*?), tyro.*\]$", r"\1", text) for name, text in said.items()}


def setup(app: Any) -> None:
    plain_types()
    app.connect("autodoc-process-docstring", with_default)
    app.connect("autodoc-process-docstring", as_rst)
