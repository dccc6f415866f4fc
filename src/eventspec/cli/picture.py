"""The moving picture of README: what both cameras saw, the answer as it grew, when each model worked; and the demo's page,
which holds such pictures and what each method took.

The picture is an SVG that moves by CSS alone, light and dark; a reader whose system asks for less motion sees its last moment.
"""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from eventspec.cli import options
from eventspec.cli.bars import waiting
from eventspec.cli.show import grown, joined, record
from eventspec.errors import BadInput
from eventspec.files import check_files, write_text
from eventspec.trace.timeline import STAGES

if TYPE_CHECKING:
    from eventspec.ask import Generation
    from eventspec.core import Trace
    from eventspec.recordings import Recording

QUESTION = "Describe the scene."
LASTS, REST = 9.0, 3.0
"""Seconds that the slowed-down answers take, and that the last moment stays."""
LEFT, WIDE, LINE = 250, 560, 62
"""Where the strips begin, how wide they are, and characters in a line of text."""
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1c1f24 } .soft { fill: #5a6270; font-size: 12px } .bold { font-weight: 600 }
.guess { fill: #9a5b00; text-decoration: underline } .paper { fill: #ffffff } .box { fill: #f3f4f6; stroke: #c9ced6 }
.now { stroke: #d62728; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e8eaed } .soft { fill: #a9b1bd } .guess { fill: #ffd479 } .paper { fill: #14171b }
  .box { fill: #1f242b; stroke: #434b57 }
}
@media (prefers-reduced-motion: reduce) { * { animation: none !important } }
"""
PAGE_STYLE = """
:root { color-scheme: light dark }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif }
img { width: 100%; height: auto; background: #ffffff }
.table { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8888 }
th[scope=row], th[scope=rowgroup], thead th:first-child { text-align: left; font-weight: normal; white-space: nowrap }
th[scope=rowgroup] { font-style: italic; padding-top: .8rem }
"""
PAGE_HEADS = ("method", "first guess, ms", "first token, ms", "whole answer, ms", "speedup", "ceiling", "tau", "same answer")


@dataclass(frozen=True)
class Strip:
    """One method: its heading, (seconds, committed text, provisional text) after every update, and what its models did."""

    heading: str
    growth: list[tuple[float, str, str]]
    trace: Trace


class Chapter(NamedTuple):
    """What the page says of one recording; `picture`: an SVG that moves; `rows`: heading and cells of the table."""

    title: str
    picture: str
    verdict: Sequence[str]
    rows: Sequence[tuple[str, ...]]


def picture(
    out: Annotated[Path, options.path("The SVG file.")] = Path("docs/figures/answer.svg"),
    pair: options.PairName = "nano",
    recording: Annotated[str, typer.Option(help="A recording with events and frames.")] = "example:street",
) -> None:
    """Draw README's moving picture from one run of plain decoding and one of cross-modal on this machine."""
    from eventspec.pairs.pair_file import folder_of
    from eventspec.recordings import Recording
    from eventspec.recordings.recording import whole_of

    if out.suffix != ".svg":
        raise BadInput(f"--out {out}: the picture is an SVG file, name it so")
    check_files({"--out": out}, [whole_of(recording), folder_of(pair)])
    with waiting("answering"):
        opened = Recording.open(recording)

        from eventspec.ask import generation
        from eventspec.pairs import load_pair, warm_up

        models = warm_up(load_pair(pair, "two", fit=False))
        titles = {"autoregressive": "the video model alone", "cross-modal": "with a draft from the event camera"}
        for method in titles:
            generation(models, opened, QUESTION, method).result()  # warms it up
        strips = [answered(generation(models, opened, QUESTION, method), title) for method, title in titles.items()]
        if strips[0].growth[-1][1] != strips[1].growth[-1][1]:
            raise BadInput("the two answers differ, which must not be: there is no picture of that")
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, drawn(strips, opened, QUESTION))


def answered(asking: Generation, title: str) -> Strip:
    """Run a question, and keep how the answer grew."""
    growth = grown(joined(record(asking)), asking.pair.tokens.vocabulary.decode)
    return Strip(f"{title}: {1e3 * asking.trace.marks['end']:.0f} ms", growth, asking.trace)


def drawn(strips: list[Strip], recording: Recording, question: str) -> str:
    """The whole SVG, of two methods."""
    from eventspec.events.pictures import pictures

    longest = max(found.trace.marks["end"] for found in strips)
    slower, scale = LASTS / longest, (WIDE - 70) / (1e3 * longest)
    made = [_strip(number, found, scale, slower) for number, found in enumerate(strips)]
    across = f"{100 * LASTS / (LASTS + REST):.2f}%, 100% {{ transform: translateX({1e3 * longest * scale:.1f}px) }}"
    moving = f"@keyframes now {{ {across} }} .now {{ animation: now {LASTS + REST:.2f}s linear infinite }}"
    assert recording.video is not None and recording.events is not None
    frame = recording.video.frames[[len(recording.video.times_us) // 2]][0]
    events = pictures(recording.events, n=5).images[2]
    seen = _embedded(frame, 34, "video camera") + _embedded(events, 284, "event camera")
    stages = [stage for stage in STAGES if any(span.stage == stage for found in strips for span in found.trace.spans)]
    legend = "".join(
        f'<rect x="{LEFT + 92 * n}" y="392" width="12" height="12" fill="{STAGES[stage][0]}"/>'
        + _text(LEFT + 17 + 92 * n, 403, stage, "soft")
        for n, stage in enumerate(stages)
    )
    notes = _text(LEFT, 432, f"One run, {slower:.0f} times slower than it happened. Both answers are the same.", "soft")
    notes += _text(LEFT, 450, "Underlined: drafted, not verified yet; it may change.", "soft")
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 530" role="img" aria-label="both cameras, and the answer '
        f'growing with drafts and without"><style>{STYLE}{"".join(style for _, style in made)}{moving}</style>'
        f'<rect width="830" height="530" class="paper"/>{_text(10, 22, question, "bold")}'
        f'<line x1="{LEFT}" x2="{LEFT}" y1="136" y2="370" class="now"/>{seen}{"".join(part for part, _ in made)}'
        f"{legend}{notes}</svg>\n"
    )


def _text(x: int, y: int, words: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{html.escape(words)}</text>'


def _embedded(image: Any, y: int, words: str) -> str:
    """A picture uint8 [H, W, 3 or 1] or [H, W] in the left column, and what it shows."""
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(image.squeeze()).quantize(64).save(held, "PNG", optimize=True)
    data = base64.b64encode(held.getvalue()).decode()
    place = f'x="10" y="{y}" width="220" height="220" image-rendering="pixelated"'
    return f'<image {place} href="data:image/png;base64,{data}"/>{_text(10, y + 236, words, "soft")}'


def _strip(number: int, found: Strip, scale: float, slower: float) -> tuple[str, str]:
    """The picture and the style of one method."""
    top, style = 34 + 170 * number, ""
    parts = [_text(LEFT, top + 14, found.heading, "bold")]
    parts.append(f'<rect x="{LEFT}" y="{top + 22}" width="{WIDE}" height="82" rx="4" class="box"/>')
    ends = [slower * at for at, *_ in found.growth[1:]]
    for step, ((at, sure, guess), end) in enumerate(zip(found.growth, [*ends, None], strict=True)):
        style += _shown_between(f"s{number}_{step}", slower * at, end)
        parts.append(f'<g class="s{number}_{step}">{_lines(sure, guess, LEFT + 10, top + 42)}</g>')
    for row, lane in enumerate(("target", "drafter")):
        spans = [span for span in found.trace.spans if span.lane == lane]
        if spans:
            parts.append(f'<text x="{LEFT + WIDE}" y="{top + 118 + 18 * row}" class="soft" text-anchor="end">{lane}</text>')
        for span in spans:
            x, width = LEFT + 1e3 * span.start * scale, max(0.5, 1e3 * (span.end - span.start) * scale)
            place = f'x="{x:.1f}" y="{top + 108 + 18 * row}" width="{width:.1f}" height="13"'
            parts.append(f'<rect {place} fill="{STAGES[span.stage][0]}"/>')
    return "".join(parts), style


def _shown_between(name: str, begin: float, end: float | None) -> str:
    """Keyframes of what is seen from `begin` to `end` seconds (None: to the last) of the loop."""
    whole = LASTS + REST
    start, stop = 100 * begin / whole, 100.0 if end is None else 100 * end / whole
    frames = {0.0: begin <= 0, start: True, stop: end is None}
    steps = " ".join(f"{at:.3f}% {{ visibility: {'visible' if on else 'hidden'} }}" for at, on in frames.items())
    last = "visible" if end is None else "hidden"
    return (
        f"@keyframes {name} {{ {steps} 100% {{ visibility: {last} }} }} "
        f".{name} {{ visibility: {last}; animation: {name} {whole:.2f}s step-end infinite }}\n"
    )


def _lines(sure: str, guess: str, x: int, y: int) -> str:
    """Lines of an answer, the part that may still change marked."""
    guess, sure = (guess, sure.lstrip()) if sure.strip() else (guess.lstrip(), "")
    place, made = 0, []
    for number, line in enumerate(textwrap.wrap(sure + guess, LINE) or [""]):
        at = (sure + guess).index(line, place)
        place = at + len(line)
        split = min(max(len(sure) - at, 0), len(line))
        own, rest = html.escape(line[:split]), html.escape(line[split:])
        made.append(f'<text x="{x}" y="{y + 19 * number}" xml:space="preserve">{own}<tspan class="guess">{rest}</tspan></text>')
    return "".join(made)


def write_page(path: Path, chapters: Sequence[Chapter], timeline: str, where: str) -> None:
    """Write the page; `timeline` is an SVG of `trace.timeline`, `where` says what it was run on."""
    intro = (
        "An event-camera model drafts while the video model still encodes its frames; the video model verifies the draft, so "
        f"the answer is its own. {where}."
    )
    about = (
        "Times are means over interleaved repeats. Ceiling: the most a method could gain that waits for the video model's "
        "vision and prefill. tau: tokens a round."
    )
    sections = [_chapter(chapter) for chapter in chapters]
    sections.append(f"<h2>When the models worked, one run of each method</h2>\n{_as_image(timeline, 'timeline')}")
    body = "\n".join(f"<section>{section}</section>" for section in sections)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>eventspec demo</title>'
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{PAGE_STYLE}</style></head>\n<body><h1>eventspec demo</h1>\n'
        f"<p>{html.escape(intro)}</p>\n<main>{body}</main>\n<footer><p>{about}</p></footer></body></html>\n",
    )


def _chapter(chapter: Chapter) -> str:
    verdict = "".join(f"<li>{html.escape(line)}</li>" for line in chapter.verdict)
    picture = _as_image(chapter.picture, "both cameras, and the answer growing")
    return f"<h2>{html.escape(chapter.title)}</h2>\n{picture}\n<ul>{verdict}</ul>\n{_table(chapter.rows)}"


def _as_image(svg: str, alt: str) -> str:
    """An SVG as an image: its style does not reach the page's."""
    return f'<img alt="{alt}" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    heads = "".join(f'<th scope="col">{head}</th>' for head in PAGE_HEADS)
    made, heading = [f'<div class="table" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>'], ""
    for group, name, *cells in rows:
        if group != heading:
            heading = group
            made.append(f'</tbody><tbody><tr><th scope="rowgroup" colspan="{len(PAGE_HEADS)}">{html.escape(heading)}</th></tr>')
        own = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        made.append(f'<tr><th scope="row">{html.escape(name)}</th>{own}</tr>')
    return "".join([*made, "</tbody></table></div>"])
