"""Two methods and two controls on a few questions, interleaved: who gives the same answer, and how much sooner."""

from __future__ import annotations

import eventspec as es

METHODS = ("autoregressive", "auto", "eagle", "prior")  # prior: drafts what is usually said, and sees nothing

pair = es.load_pair("nano")
recording = es.Recording.open("example:street")
questions = ("Describe the scene.", "How many road users are visible?")
seconds = dict.fromkeys(METHODS, 0.0)
for turn in range(2):
    for question in questions:
        found = {method: es.generate(pair, recording, question, method) for method in METHODS}
        assert len({tuple(result.token_ids) for result in found.values()}) == 1  # every answer is the target's own
        for method, result in found.items():
            seconds[method] += result.trace.marks["end"] if turn else 0.0  # the first turn warms up
for method, took in seconds.items():
    print(f"{method:16s}{1e3 * took / len(questions):8.1f} ms an answer {seconds['autoregressive'] / took:6.2f}x")
