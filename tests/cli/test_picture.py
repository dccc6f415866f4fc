"""README's moving picture: both answers as they grew, what each model did, and what the cameras saw, in one SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from eventspec.ask import generation
from eventspec.cli.picture import QUESTION, answered, drawn
from eventspec.pairs import load_pair
from eventspec.pairs.pair_file import DATA
from eventspec.recordings import Recording

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_shows_both_answers_growing() -> None:
    pair, recording = load_pair("nano", "two", fit=False), Recording.open(DATA / "clips/street_scene")
    strips = [answered(generation(pair, recording, QUESTION, method), method) for method in ("autoregressive", "cross-modal")]
    assert strips[0].growth[-1][1] == strips[1].growth[-1][1], "the answers are the same"
    svg = ElementTree.fromstring(drawn(strips, recording, QUESTION))
    words = ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]
    assert {QUESTION, "target", "drafter", "video camera", "event camera"} <= set(words)
    assert len(list(svg.iter(f"{SVG}g"))) == sum(len(strip.growth) for strip in strips)
    assert len(list(svg.iter(f"{SVG}image"))) == 2
