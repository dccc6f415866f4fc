r"""Draws the README's moving picture: what both cameras saw, the answer as it grew, and when each model worked.

python benchmarks/growing.py           # writes docs/figures/answer.svg from one run of each method on this machine

An SVG that moves by CSS alone, light and dark; who asks for less motion sees its last moment.
"""

from __future__ import annotations

import base64
import html
import io
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eventspec as es
from eventspec.ask import generation
from eventspec.cli.show import grown, joined, record
from eventspec.core import Trace
from eventspec.events.pictures import pictures
from eventspec.files import write_text
from eventspec.pairs import Pair, warm_up

OUT = Path(__file__).parent.parent / "docs/figures/answer.svg"
QUESTION = "Describe the scene."
LASTS, REST = 9.0, 3.0
"""Seconds that the slowed-down answers take, and that the last moment stays."""
LEFT, WIDE, LINE = 250, 560, 62
"""Where the strips begin, how wide they are, and characters in a line of text."""
COLOURS = {"vision": "#4c78a8", "prefill": "#9ecae9", "draft": "#f58518", "verify": "#54a24b", "decode": "#b8b8b8"}
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1c1f24 } .soft { fill: #5a6270; font-size: 12px } .bold { font-weight: 600 }
.guess { fill: #9a5b00; text-decoration: underline } .paper { fill: #ffffff } .box { fill: #f3f4f6; stroke: #c9ced6 }
.now { stroke: #d62728; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e8eaed } .soft { fill: #a9b1bd } .guess { fill: #ffd479 } .paper { fill: #14171b }
  .box { fill: #1f242b; stroke: #434b57 }
}
"""


@dataclass(frozen=True)
class Strip:
    """One method: its heading, what its reader saw by and by, and what its models did."""

    heading: str
    growth: list[tuple[float, str, str]]
    trace: Trace


def answered(pair: Pair, recording: es.Recording, method: str, heading: str) -> Strip:
    """The second run of a method: the first one warms it up."""
    for _ in range(2):
        asking = generation(pair, recording, QUESTION, method)
        updates = record(asking)
    growth = grown(joined(updates), pair.vocabulary.decode)
    return Strip(f"{heading}: {1e3 * asking.trace.marks['end']:.0f} ms", growth, asking.trace)


def embedded(image: Any, x: int, y: int, says: str) -> str:
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(image).quantize(64).save(held, "PNG", optimize=True)
    data = base64.b64encode(held.getvalue()).decode()
    shown = f'<image x="{x}" y="{y}" width="220" height="220" image-rendering="pixelated" href="data:image/png;base64,{data}"/>'
    return f'{shown}<text x="{x}" y="{y + 236}" class="soft">{says}</text>'


def shown_between(name: str, begin: float, end: float | None, whole: float) -> str:
    """Keyframes of what is seen from `begin` to `end` seconds (None: to the last) of a loop of `whole` seconds."""
    from_, to = 100 * begin / whole, 100.0 if end is None else 100 * end / whole
    frames = [(0.0, begin <= 0), (from_, True), (to, end is None)]
    steps = " ".join(f"{at:.3f}% {{ visibility: {'visible' if on else 'hidden'} }}" for at, on in dict(frames).items())
    last = "visible" if end is None else "hidden"
    return (
        f"@keyframes {name} {{ {steps} 100% {{ visibility: {last} }} }} "
        f".{name} {{ visibility: {last}; animation: {name} {whole:.2f}s step-end infinite }}\n"
    )


def text(sure: str, guess: str, x: int, y: int) -> str:
    """Lines of an answer, the part that may still change marked."""
    guess, sure = (guess, sure.lstrip()) if sure.strip() else (guess.lstrip(), "")
    lines, place, made = textwrap.wrap(sure + guess, LINE) or [""], 0, []
    for number, line in enumerate(lines):
        at = (sure + guess).index(line, place)
        place = at + len(line)
        split = min(max(len(sure) - at, 0), len(line))
        own, open_ = html.escape(line[:split]), html.escape(line[split:])
        made.append(
            f'<text x="{x}" y="{y + 19 * number}" xml:space="preserve">{own}<tspan class="guess">{open_}</tspan></text>'
        )
    return "".join(made)


def strip(number: int, found: Strip, top: int, scale: float, slower: float) -> tuple[str, str]:
    """The picture and the style of one method."""
    drawn = [f'<text x="{LEFT}" y="{top + 14}" class="bold">{html.escape(found.heading)}</text>']
    drawn.append(f'<rect x="{LEFT}" y="{top + 22}" width="{WIDE}" height="82" rx="4" class="box"/>')
    style = ""
    for step, (at, sure, guess) in enumerate(found.growth):
        name, after = f"s{number}_{step}", found.growth[step + 1][0] if step + 1 < len(found.growth) else None
        style += shown_between(name, slower * at, None if after is None else slower * after, LASTS + REST)
        drawn.append(f'<g class="{name}">{text(sure, guess, LEFT + 10, top + 42)}</g>')
    for row, lane in enumerate(("target", "drafter")):
        spans = [span for span in found.trace.spans if span.lane == lane]
        if spans:
            drawn.append(
                f'<text x="{LEFT + WIDE}" y="{top + 100 + 18 * (row + 1)}" class="soft" text-anchor="end">{lane}</text>'
            )
        for span in spans:
            x, width = LEFT + 1e3 * span.start * scale, max(0.5, 1e3 * (span.end - span.start) * scale)
            colour = COLOURS.get(span.stage, "#f2b880")
            drawn.append(f'<rect x="{x:.1f}" y="{top + 108 + 18 * row}" width="{width:.1f}" height="13" fill="{colour}"/>')
    return "".join(drawn), style


def main() -> None:
    """Write the picture."""
    pair, recording = warm_up(es.load_pair("embedded", "two")), es.Recording.open("example:street")
    strips = [
        answered(pair, recording, "autoregressive", "the video model alone"),
        answered(pair, recording, "cross-modal", "with a draft from the event camera"),
    ]
    longest = max(found.trace.marks["end"] for found in strips)
    slower, scale = LASTS / longest, (WIDE - 70) / (1e3 * longest)
    drawn, styles = zip(*(strip(n, found, 34 + 170 * n, scale, slower) for n, found in enumerate(strips)), strict=True)
    across = f"{100 * LASTS / (LASTS + REST):.2f}%, 100% {{ transform: translateX({1e3 * longest * scale:.1f}px) }}"
    moving = f"@keyframes now {{ {across} }} .now {{ animation: now {LASTS + REST:.2f}s linear infinite }}"
    still = "@media (prefers-reduced-motion: reduce) { * { animation: none !important } }"
    frame = recording.video.frames[[len(recording.video.times_us) // 2]][0]
    seen = embedded(frame, 10, 34, "video camera") + embedded(pictures(recording.events, n=5)[0][2], 10, 284, "event camera")
    legend = "".join(
        f'<rect x="{LEFT + 92 * n}" y="392" width="12" height="12" fill="{colour}"/>'
        f'<text x="{LEFT + 17 + 92 * n}" y="403" class="soft">{name}</text>'
        for n, (name, colour) in enumerate(COLOURS.items())
    )
    notes = f'<text x="{LEFT}" y="432" class="soft">One run, {slower:.0f} times slower than it happened.'
    notes += " Both answers are the same, token by token.</text>"
    notes += f'<text x="{LEFT}" y="450" class="soft">Underlined: drafted, not verified yet; it may change.</text>'
    about = "the answer of the video model alone and with drafts from the event camera, growing"
    write_text(
        OUT,
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 530" role="img" aria-label="{about}">'
        f"<style>{STYLE}{''.join(styles)}{moving} {still}</style>"
        f'<rect width="830" height="530" class="paper"/><text x="10" y="22" class="bold">{html.escape(QUESTION)}</text>'
        f'<line x1="{LEFT}" x2="{LEFT}" y1="136" y2="370" class="now"/>{seen}{"".join(drawn)}{legend}{notes}</svg>\n',
    )


if __name__ == "__main__":
    main()
