"""Train an EAGLE head for a target, and draft with it. The preset `smoke` takes seconds and learns nothing much; see
`eventspec train heads --help` for real ones, and for heads of your own target on your own questions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import eventspec as es
from eventspec.train.heads import train


def tell(stage: str, progress: float, figures: dict[str, float]) -> None:
    """Called while it runs."""
    print(f"\r{stage} {progress:4.0%}", end="", flush=True)


if __name__ == "__main__":  # rendering and answering start processes of their own
    with tempfile.TemporaryDirectory() as folder:
        trained = train("nano", "smoke", ["eagle"], Path(folder), tell)
        pair, recording = es.load_pair(trained, fit=False), es.Recording.open("example:street")
        plain = es.generate(pair, recording, "Describe the scene.", "autoregressive")
        drafted = es.generate(pair, recording, "Describe the scene.", "eagle")
        assert drafted.token_ids == plain.token_ids
        print(f"\n{drafted.text}\n{drafted.trace.tau:.2f} tokens a round, after seconds of training")
