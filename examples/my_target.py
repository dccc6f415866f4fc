"""A target of your own: here a bigram model that has read one answer. Any drafter may draft for it; the answer is its own."""

import torch

import eventspec as es


class Answer:
    chunked, room, last = False, 1000, 0

    def __init__(self, table: torch.Tensor) -> None:
        self.table, self.fresh_copy = table, lambda: Answer(table)  # near ties are settled by reading the answer again

    def score(self, proposal: es.Proposal) -> es.Scores:  # logits after the last token, and after every node
        return es.Scores(self.table[[self.last, *proposal.tokens.tolist()]])

    def commit(self, verdict: es.Verdict) -> None:
        self.last = int(verdict.tokens[-1])


class Bigram(es.Target, es.Context):  # it sees nothing of a recording, so it is its own context
    def __init__(self, table: torch.Tensor) -> None:
        self.lossless, self.table = True, table
        self.limits = es.Limits(len(table), layers=0, trees=True, rounding=0.0)

    def encode(self, media: es.Media, trace: es.Trace) -> es.Context:
        return self

    def open(self, *asked: object) -> Answer:  # question, sampling, tail, trace, taps
        return Answer(self.table)


pair, recording = es.load_pair("nano"), "example:street"
read = torch.tensor([0, *es.generate(pair, recording, "Is anybody crossing the road?").token_ids])
table = torch.zeros(pair.vocabulary.size, pair.vocabulary.size)
table.index_put_((read[:-1], read[1:]), torch.tensor(1.0), accumulate=True)
mine = pair.with_target(Bigram(table))
plain, drafted = (es.generate(mine, recording, "Well?", name, max_new_tokens=12) for name in ("autoregressive", "ngram"))
assert drafted.token_ids == plain.token_ids, plain.text
print(f"{plain.text!r} either way; drafted by ngram in {drafted.trace.tau:.1f} tokens a round")
