"""Lets pages link to files of the repository: such a file becomes a page of the site, so that the link works offline too.

A link to a file that does not exist stays as it is, and MkDocs warns of it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()((?:\.\./)+[\w./-]+)(?=\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".sh": "sh"}


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' hook: every linked file joins the site."""
    from mkdocs.structure.files import File

    pages = [file for file in files if file.src_uri.endswith(".md")]
    linked = {place for file in pages for link in LINK.findall(file.content_string) if (place := outside(link, file.src_uri))}
    for place in sorted(linked):
        files.append(File.generated(config, page_of(place), content=shown(place)))
    return files


def on_page_markdown(markdown: str, page: Any, **around: Any) -> str:
    """MkDocs' hook: the links point to those pages."""
    here = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        place = outside(found.group(1), here)
        return posixpath.relpath(page_of(place), posixpath.dirname(here) or ".") if place else found.group(1)

    return LINK.sub(moved, markdown)


def outside(link: str, page: str) -> str | None:
    """The file of the repository that a page's link names; None for what lies in docs/ or does not exist."""
    place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    inside = place.startswith(("docs/", "../")) and not place.startswith("docs/hooks/")
    return None if inside or not (ROOT / place).is_file() else place


def page_of(place: str) -> str:
    """Where a file's page stands."""
    return f"repository/{place}.md"


def shown(place: str) -> str:
    """A file as a page."""
    language = LANGUAGES.get(Path(place).suffix, "text")
    return f"# {place}\n\n~~~~~{language}\n{(ROOT / place).read_text().rstrip()}\n~~~~~\n"
