"""The bundled packer: nearer to the target that sees everything than pooling to as few rows."""

from __future__ import annotations

import pytest

from eventspec.ask import generate
from eventspec.pairs import load_pair
from eventspec.scenes.clip import make_clip, split_seed
from eventspec.scenes.language import questions
from eventspec.scenes.writer import as_recording


@pytest.mark.long
def test_a_trained_packer_keeps_more_of_the_answers_than_pooling_does() -> None:
    pair = load_pair("nano", "one")
    ways = {spec: pair.with_compression(spec) for spec in ("packer:2", "pool:4")}
    kept, rows = dict.fromkeys(ways, 0), {}
    for index in range(3):
        clip = make_clip(split_seed("test", 978, index))
        recording = as_recording(clip, f"scene {index}")
        for qa in questions(clip.facts, index)[:4]:
            wanted = generate(pair, recording, qa.question, "autoregressive", max_new_tokens=24).token_ids
            for spec, way in ways.items():
                found = generate(way, recording, qa.question, "compressed-target", max_new_tokens=24)
                rows[spec] = found.visual_tokens
                # Tokens before the first that differs.
                pairs = zip(found.token_ids, wanted, strict=False)
                kept[spec] += next((place for place, (a, b) in enumerate(pairs) if a != b), len(wanted))
    assert rows == {"packer:2": 136, "pool:4": 130}
    assert kept["packer:2"] > kept["pool:4"]
