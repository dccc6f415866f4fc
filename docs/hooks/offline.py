"""Keeps the site off the network: no page may load anything from elsewhere, and the search works on pages from the disk."""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

SHIM = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
"""What Material's plugin `offline` adds to every page; ours does the same and comes with the site."""
OWN = "figures/search-from-disk.js"
REMOTE = re.compile(
    r"""(?:src|srcset)=["'](?:https?:)?//[^"']+|<link[^>]+href=["'](?:https?:)?//[^"']+|url\(["']?(?:https?:)?//""",
)
log = logging.getLogger("mkdocs.hooks.offline")


def on_post_page(output: str, page: Any, **around: Any) -> str:
    """MkDocs' hook: our script instead of the remote one."""
    return local(output, page.file.dest_uri)


def on_post_template(output: str, template_name: str, **around: Any) -> str:
    """MkDocs' hook: the same for pages without a source, 404.html."""
    return local(output, template_name) if template_name.endswith(".html") else output


def local(html: str, place: str) -> str:
    """A page with our script in place of the remote one."""
    here = posixpath.dirname(place) or "."
    return html.replace(SHIM, f'<script src="{posixpath.relpath(OWN, here)}"></script>')


def on_post_build(config: Any, **around: Any) -> None:
    """MkDocs' hook: a warning, which fails the build, for every page that would load something from elsewhere."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if found := REMOTE.search(page.read_text()):
            log.warning(f"{page.relative_to(config.site_dir)} loads from the network: {found.group(0)}")
