"""The timeline as a small drawing inside a page: plain SVG in the page's own text colour, without script or further files."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from eventspec.trace.timeline import STAGES, lanes_of

if TYPE_CHECKING:
    from eventspec.trace import Trace

WIDTH, LEFT, LANE = 640, 56, 18
"""Pixels: of the drawing, of the lanes' names, and of a lane."""
MOST_SPANS = 400
"""A longer answer is drawn up to here, so that a notebook stays small."""


def drawing(trace: Trace) -> str:
    """HTML: a bar for every span, on a lane for each model; times in milliseconds in the tooltips."""
    spans = trace.spans[:MOST_SPANS]
    lanes = lanes_of(trace)
    end = max([1e-9, *(span.end for span in spans)])
    parts = []
    for row, lane in enumerate(lanes):
        y = row * (LANE + 4)
        parts.append(f'<text x="0" y="{y + 13}" font-size="11" fill="currentColor">{lane}</text>')
        for span in (span for span in spans if span.lane == lane):
            x, wide = LEFT + (WIDTH - LEFT) * span.start / end, (WIDTH - LEFT) * (span.end - span.start) / end
            tip = f"{span.stage}: {1e3 * span.start:.1f} to {1e3 * span.end:.1f} ms"
            if span.round is not None and span.round < len(trace.rounds):
                made = trace.rounds[span.round]
                tip += f", {made.accepted} of {made.depth} levels accepted: {made.text}"
            box = f'x="{x:.1f}" y="{y}" width="{max(0.5, wide):.1f}" height="{LANE}" fill="{STAGES[span.stage][0]}"'
            parts.append(f"<rect {box}><title>{escape(tip)}</title></rect>")
    height = len(lanes) * (LANE + 4) + 14
    left = "" if len(spans) == len(trace.spans) else f"; the first {MOST_SPANS} of {len(trace.spans)} spans"
    words = escape(f"0 to {1e3 * end:.1f} ms{left}; {', '.join(dict.fromkeys(span.stage for span in spans))}")
    parts.append(f'<text x="{LEFT}" y="{height - 3}" font-size="11" fill="currentColor">{words}</text>')
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">{"".join(parts)}</svg>'
