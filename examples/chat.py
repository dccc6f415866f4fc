"""Several questions about one recording: it is encoded once, and only the first question reads its rows."""

from __future__ import annotations

import eventspec as es

pair = es.load_pair("nano")
context = pair.open(es.Recording.open("example:street"))
for question in ("What is ahead?", "How many road users are visible?", "Is anybody crossing the road?"):
    result = context.ask(question)
    print(f"{1e3 * result.trace.marks['first_committed']:6.1f} ms to the first token: {result.text}")
