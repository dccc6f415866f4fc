"""One question about one recording: the whole answer, as it grows, and as a value that fits a JSON schema."""

from __future__ import annotations

import json

import eventspec as es

pair = es.load_pair("nano")
recording = es.Recording.open("example:street")

result = es.generate(pair, recording, "Describe the scene.")
print(f"{result.text}\nmethod {result.chosen}, {result.trace.tau:.1f} tokens a round")

for piece in es.stream_text(pair, recording, "Describe the scene.", method="cross-modal"):
    print(piece.text, end="|" if piece.text else "", flush=True)  # verified; `piece.provisional` may still change
print()

schema = {"type": "object", "properties": {"cars": {"type": "integer"}}, "required": ["cars"], "additionalProperties": False}
try:
    constraint = pair.json_schema(schema)
except es.BadInput as error:  # without pip install 'eventspec[grammar]'
    print(error)
else:
    print(json.loads(es.generate(pair, recording, "How many road users are visible?", constraint=constraint).text))
