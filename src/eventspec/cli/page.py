"""One self-contained page about the demo: what the cameras saw, how the answer grew, what each method took, and when."""

from __future__ import annotations

import base64
import html
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventspec.recordings import Recording
    from eventspec.recordings.qa import Question


@dataclass(frozen=True)
class Clip:
    """What the page shows of one recording."""

    question: Question
    recording: Recording
    growth: list[tuple[float, str, str]]
    """(seconds, committed text, provisional text) behind every update of an answer."""
    verdict: list[str]
    rows: list[tuple[str, ...]]
    """Heading and cells of the table's rows."""


STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --paper: #ffffff; --soft: #f3f4f6; --line: #c9ced6; --guess: #5a4200; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --paper: #14171b; --soft: #1f242b; --line: #434b57; --guess: #ffd479; }
}
body { margin: 0 auto; max-width: 62rem; padding: 1rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.5 system-ui, sans-serif; }
figure { display: inline-block; margin: 0 1rem 1rem 0; }
img { display: block; height: 13rem; image-rendering: pixelated; border: 1px solid var(--line); }
figcaption, .how { font-size: .9rem; }
.answer { min-height: 4.5rem; padding: .75rem; background: var(--soft); border: 1px solid var(--line); }
.guess { color: var(--guess); text-decoration: underline dotted; }
.time { font-variant-numeric: tabular-nums; }
.table, .timeline { overflow-x: auto; }
.timeline { background: #ffffff; padding: .5rem; }
.timeline svg { width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th[scope=row], th[scope=rowgroup] { text-align: left; font-weight: normal; white-space: nowrap; }
thead th:first-child { text-align: left; }
th[scope=rowgroup] { font-style: italic; padding-top: .8rem; }
button { font: inherit; padding: .3rem .8rem; }
"""

SCRIPT = """
const SLOWER = 40;
for (const part of document.querySelectorAll("section[data-growth]")) {
  const steps = JSON.parse(part.dataset.growth), answer = part.querySelector(".answer"), time = part.querySelector(".time");
  const show = ([ms, sure, guess]) => {
    const open = document.createElement("span");
    open.className = "guess";
    open.textContent = guess;
    answer.replaceChildren(sure, open);
    time.textContent = ms.toFixed(1) + " ms";
  };
  let timers = [];
  part.querySelector("button").addEventListener("click", () => {
    timers.forEach(clearTimeout);
    timers = steps.map(step => setTimeout(show, SLOWER * step[0], step));
    answer.replaceChildren();
    time.textContent = "0.0 ms";
  });
}
"""

HEADS = ("method", "first guess, ms", "first token, ms", "whole answer, ms", "speedup", "ceiling", "tau", "same answer")


def write_page(path: Path, clips: list[Clip], timeline: str, where: str) -> None:
    """Write the page; `timeline` is an SVG of `cli.timeline`, `where` says what it was run on."""
    from eventspec.files import write_text

    sections = "\n".join(_section(number, clip) for number, clip in enumerate(clips))
    drawn = re.sub(r"^.*?(?=<svg)", "", timeline, flags=re.S).replace("<svg", '<svg role="img" aria-label="timeline"', 1)
    write_text(
        path,
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>eventspec demo</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>eventspec demo</h1>
<p>An event-camera model drafts while the video model still encodes its frames; the video model verifies the draft, so the
answer is its own. {html.escape(where)}.</p>
</header>
<main>
{sections}
<section>
<h2>When the models worked</h2>
<p>{html.escape(clips[0].question.question)} One run of each method.</p>
<div class="timeline" tabindex="0" role="region" aria-label="timeline">{drawn}</div>
</section>
</main>
<footer><p class="how">Times are means over interleaved repeats. Ceiling: the most a method could gain that waits for the video
model's vision and prefill. tau: tokens a round.</p></footer>
<script>{SCRIPT}</script>
</body>
</html>
""",
    )


def _section(number: int, clip: Clip) -> str:
    import json

    name, question = html.escape(clip.question.id), html.escape(clip.question.question)
    growth = html.escape(json.dumps([[round(1e3 * at, 1), sure, guess] for at, sure, guess in clip.growth]), quote=True)
    ended, sure, guess = clip.growth[-1]
    said = "".join(f"<li>{html.escape(line)}</li>" for line in clip.verdict)
    return f"""<section data-growth="{growth}" aria-labelledby="clip{number}">
<h2 id="clip{number}">{name}: {question}</h2>
{_pictures(clip.recording)}
<p class="answer" aria-live="off">{html.escape(sure)}<span class="guess">{html.escape(guess)}</span></p>
<p class="how"><button type="button">Replay, 40 times slower</button> <span class="time">{1e3 * ended:.1f} ms</span>;
underlined: provisional, not verified yet.</p>
<ul>{said}</ul>
<div class="table" tabindex="0" role="region" aria-label="methods compared on {name}">{_table(clip.rows)}</div>
</section>"""


def _pictures(recording: Recording) -> str:
    from eventspec.events.pictures import pictures

    shown = []
    if recording.video is not None:
        frame = recording.video.frames[[len(recording.video.times_us) // 2]][0]
        shown.append(("a frame in the middle of the clip", frame))
    if recording.events is not None and len(recording.events):
        shown.append(("the events of its middle fifth: brighter red, darker blue", pictures(recording.events, n=5)[0][2]))
    return "".join(
        f'<figure><img src="data:image/png;base64,{_png(image)}" alt="{says}"><figcaption>{says}</figcaption></figure>'
        for says, image in shown
    )


def _png(image: Any) -> str:
    """An image uint8 [H, W, 3 or 1] or [H, W] as base64."""
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(image.squeeze()).save(held, "PNG")
    return base64.b64encode(held.getvalue()).decode()


def _table(rows: list[tuple[str, ...]]) -> str:
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    made, heading = [f"<table><thead><tr>{heads}</tr></thead><tbody>"], ""
    for cells in rows:
        if cells[0] != heading:
            heading = cells[0]
            made.append(f'</tbody><tbody><tr><th scope="rowgroup" colspan="{len(HEADS)}">{html.escape(heading)}</th></tr>')
        own = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells[2:])
        made.append(f'<tr><th scope="row">{html.escape(cells[1])}</th>{own}</tr>')
    return "".join([*made, "</tbody></table>"])
