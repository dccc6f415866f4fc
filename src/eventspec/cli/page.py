"""One self-contained page about the demo: what the cameras saw, how the answer grew, what each method took, and when."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Chapter(NamedTuple):
    """What the page says of one recording; `picture`: an SVG that moves; `rows`: heading and cells of the table."""

    title: str
    picture: str
    verdict: Sequence[str]
    rows: Sequence[tuple[str, ...]]


STYLE = """
:root { color-scheme: light dark }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif }
img { width: 100%; height: auto; background: #ffffff }
.table { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8888 }
th[scope=row], th[scope=rowgroup], thead th:first-child { text-align: left; font-weight: normal; white-space: nowrap }
th[scope=rowgroup] { font-style: italic; padding-top: .8rem }
"""
HEADS = ("method", "first guess, ms", "first token, ms", "whole answer, ms", "speedup", "ceiling", "tau", "same answer")


def write_page(path: Path, chapters: Sequence[Chapter], timeline: str, where: str) -> None:
    """Write the page; `timeline` is an SVG of `trace.timeline`, `where` says what it was run on."""
    from eventspec.files import write_text

    intro = (
        "An event-camera model drafts while the video model still encodes its frames; the video model verifies the draft, so "
        f"the answer is its own. {where}."
    )
    about = (
        "Times are means over interleaved repeats. Ceiling: the most a method could gain that waits for the video model's "
        "vision and prefill. tau: tokens a round."
    )
    sections = [_chapter(chapter) for chapter in chapters]
    sections.append(f"<h2>When the models worked, one run of each method</h2>\n{_image(timeline, 'timeline')}")
    body = "\n".join(f"<section>{section}</section>" for section in sections)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>eventspec demo</title>'
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body><h1>eventspec demo</h1>\n'
        f"<p>{html.escape(intro)}</p>\n<main>{body}</main>\n<footer><p>{about}</p></footer></body></html>\n",
    )


def _chapter(chapter: Chapter) -> str:
    verdict = "".join(f"<li>{html.escape(line)}</li>" for line in chapter.verdict)
    picture = _image(chapter.picture, "both cameras, and the answer growing")
    return f"<h2>{html.escape(chapter.title)}</h2>\n{picture}\n<ul>{verdict}</ul>\n{_table(chapter.rows)}"


def _image(svg: str, alt: str) -> str:
    """An SVG as an image: its style does not reach the page's."""
    return f'<img alt="{alt}" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    made, heading = [f'<div class="table" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>'], ""
    for group, name, *cells in rows:
        if group != heading:
            heading = group
            made.append(f'</tbody><tbody><tr><th scope="rowgroup" colspan="{len(HEADS)}">{html.escape(heading)}</th></tr>')
        own = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        made.append(f'<tr><th scope="row">{html.escape(name)}</th>{own}</tr>')
    return "".join([*made, "</tbody></table></div>"])
