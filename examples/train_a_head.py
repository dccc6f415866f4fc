"""Train an EAGLE head for a target on questions of your own, and draft with it. The preset `smoke` takes seconds and learns
little; `eventspec train heads --target ... --questions ...` is the same as a command."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import eventspec as es
from eventspec.train.names import Given
from eventspec.train.own import train


def tell(stage: str, progress: float, figures: dict[str, float]) -> None:
    """Called while it runs."""


asked = ("Describe the scene.", "How many road users are visible?", "What is around us?", "What should the driver do?")
pair, recording = es.load_pair("nano", fit=False), es.Recording.open("example:street")
with tempfile.TemporaryDirectory() as folder:
    questions = Path(folder) / "qa.jsonl"
    rows = [{"recording": "example:street", "question": question, "answer": "-"} for question in asked]
    questions.write_text("\n".join(map(json.dumps, rows)))
    given = Given(questions, work=Path(folder) / "work")  # where the target's answers are kept
    heads = train(pair.checkpoint, given, "smoke", ["eagle"], Path(folder) / "out", tell)
    trained = pair.with_head(str(heads / "eagle"))
    plain, drafted = (es.generate(trained, recording, asked[0], method) for method in ("autoregressive", "eagle"))
assert drafted.token_ids == plain.token_ids  # whatever a head drafts
print(f"{drafted.trace.tau:.2f} tokens a round after seconds of training; the bundled head has")
print(f"{es.generate(pair, recording, asked[0], 'eagle').trace.tau:.2f}")
