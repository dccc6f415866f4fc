"""A camera pair as it runs: frames and events are pushed as they come; a question is answered from what was read already."""

from __future__ import annotations

import time

import eventspec as es

pair = es.load_pair("nano")
recording = es.Recording.open("example:davis")
question, before = "How many road users are visible?", recording.span.start_us
with pair.live(window_us=500_000) as live:
    for frame, at in zip(recording.video.frames, recording.video.times_us.tolist(), strict=True):
        live.push_events(recording.events.slice(es.Window(before, at + 1)))
        live.push_frame(frame, at)
        before = at + 1
    while live.window is None:  # it is being read; asked before that, a question reads for itself
        time.sleep(0.01)
    answer = live.ask(question, max_new_tokens=16)
print(f"{1e3 * answer.seconds:6.1f} ms to the whole answer about {answer.window}: {answer.text}")

plain = es.generate(pair, recording, question, "autoregressive", answer.window, max_new_tokens=16)
print("generate says about that window:", plain.text)
