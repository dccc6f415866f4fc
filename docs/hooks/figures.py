"""Puts drawings into the page itself, so that their lines and letters take the page's colours, light or dark.

As a file a drawing brings colours of its own for both, in a <style> that is left out here.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

IMAGE = re.compile(r"!\[([^\]]*)\]\(([\w./-]+\.svg)\)")
STYLE = re.compile(r"<style>.*?</style>\s*", re.DOTALL)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any, **around: Any) -> str:
    """MkDocs' hook: `![caption](drawing.svg)` becomes the drawing with its caption."""

    def drawn(found: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found.group(2)))
        file = files.get_file_from_path(place)
        if file is None:
            return found.group(0)  # MkDocs warns of it
        drawing = STYLE.sub("", file.content_string)
        return f'<figure class="drawing">\n{drawing}<figcaption>{found.group(1)}</figcaption>\n</figure>'

    return IMAGE.sub(drawn, markdown)
