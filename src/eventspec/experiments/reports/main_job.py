"""The figures of the main comparison in README and docs, of what sharing frames costs, and of what `plan` predicts."""

from __future__ import annotations

import textwrap
from typing import Any

from eventspec.experiments.charts import value_of, values
from eventspec.experiments.names import ALL_CORES, BASE, BLIND
from eventspec.experiments.plan import PROFILES, methods_of, outlook
from eventspec.experiments.reports import FASTER, Block, Charts, Found, Results
from eventspec.experiments.tables import filled, named, spread, table, table_of

LEAST = 2_000_000
"""Tokens that have to be compared with the weights that ship; until then earlier runs are counted."""
ROWS = {
    BASE: "`autoregressive`: the target alone",
    ALL_CORES: "the same with all cores for itself",
    "auto": "`auto`, the default: chooses",
    "hybrid": "`hybrid`: drafts from every source",
    "cross-modal": "`cross-modal`: drafts from the event camera",
    "cross-modal, shuffled events": "the same with another clip's events (control)",
    "prior": "`prior`: drafts from the blind prior (control)",
}
"""Rows of README's table."""
README = {
    "method": "{what}",
    "speedup (95 %), cores shared out": "{shared:.2f}",
    "speedup, one core a model": "{speedup+speedup_ci95:.2f}",
    "first guess": "{guess}",
    "first token": "{first_committed_ms:.0f} ms",
    "tau": "{tau:.2f}",
}
ALL = {
    "method": "{name}",
    "speedup (95 %)": "{speedup+speedup_ci95:.2f}",
    "tau": "{tau:.2f}",
    "accepted of drafted levels": "{acceptance:.0%}",
    "first choice right where the prior is wrong": "{acceptance_vision:.0%}",
    "first provisional, ms": "{first_provisional_ms:.0f}",
    "of them kept": "{provisional_kept:.0%}",
    "first committed, ms": "{first_committed_ms:.0f}",
    "identical": "{identical}",
}
PROFILED = {
    "profile": "`{profile}`",
    "tokens": "{tokens}",
    "prefill share": "{prefill_share:.0%}",
    "ceiling": "{ceiling:.2f}x",
    "`cross-modal` as accepted in recorded runs": "{methods[cross-modal][speedup]:.2f}x",
    "head start accepted whole, plain decoding after it": ("{methods[cross-modal, whole head start accepted][speedup]:.2f}x"),
}
LENGTHS = (10, 40, 100)
REUSED = {
    "`reuse_below`": "{name}",
    "frames encoded": "{encoded_share:.0%}",
    "answers that stay (95 %)": "{same_share+same_ci95:.0%}",
    "control: as many frames, evenly chosen": "{evenly_share+evenly_ci95:.0%}",
}
MAIN = ("hybrid", "cross-modal", "cross-modal, shuffled events", "eagle", "prior", "auto", ALL_CORES)
"""Arms that stand beside each other for every machine."""
PLACEMENTS = {"two": "a core a model", "auto": "cores shared out"}


def readme(results: Results) -> str:
    """README's table, what it means, and what was compared token by token."""
    found, shared = results["main-job"], results["shared-cores"]
    methods, together, where = found["methods"], shared["methods"], found["environment"]
    for run in (found, shared):
        assert all(run["methods"][name]["identical"] == run["n"] for name in ROWS if name in run["methods"])
    rows = []
    for name, what in ROWS.items():
        speedup = [together[name]["speedup"], *together[name]["speedup_ci95"]] if name in together else None
        guess = methods[name]["first_provisional_ms"]
        rows.append({**methods[name], "what": what, "shared": speedup, "guess": None if guess is None else f"{guess:.0f} ms"})
    own, other, prior, hybrid = (methods[name] for name in ("cross-modal", "cross-modal, shuffled events", "prior", "hybrid"))
    chosen = together["auto"]
    gains = (
        f"{where['processor']}, {where['cores']} cores, n = {found['n']}; the answers of each row are the target's own. By "
        "default cores are shared out: a target without a drafter beside it has all of them. An answer then takes "
        f"{together[BASE]['total_ms']:.0f} ms, with `auto` {chosen['total_ms']:.0f}, of a ceiling of {chosen['ceiling']:.2f}x. "
        f"The event camera is not why: `auto` is {times(chosen, 'prior')} as fast as the blind `prior` and "
        f"{times(chosen, 'auto, shuffled events')} as fast as with another clip's events. With one core a model, as on two "
        f"accelerators, the ceiling is {own['ceiling']:.2f}x, and `hybrid` is {times(hybrid, 'prior')} as fast as `prior` and "
        f"{times(hybrid, 'hybrid, shuffled events')} as fast as with another clip's events. {1 - prior['vision_share']:.0%} of "
        "the tokens can be guessed blind. A first guess that has seen the scene comes after "
        f"{own['first_provisional_ms']:.0f} ms, where the target's first token comes after "
        f"{methods[BASE]['first_committed_ms']:.0f}; {own['provisional_kept']:.0%} of the guesses are confirmed "
        f"({prior['provisional_kept']:.0%} of the prior's, {other['provisional_kept']:.0%} with another clip's events)."
    )
    words = [textwrap.fill(text, 128) for text in (gains, exact(results["identity"], where["pair_sha256"]))]
    return "\n\n".join([table_of(rows, README).replace("\u00a0", " "), *words])


def exact(found: Found, weights: str) -> str:
    """What was compared token by token: with the weights that ship, or with earlier ones until that is done."""
    runs = [run for machine in found.values() for name, run in machine.items() if name.startswith("temp")]
    own = [run for run in runs if run["weights"] == weights]
    runs, which = (own, "") if sum(run["tokens"] for run in own) >= LEAST else (runs, " with earlier weights of this pair")
    tokens, plain, differ = (sum(run[what] for run in runs) for what in ("tokens", "plain_tokens", "different"))
    return (
        f"In fp32, sampled and greedy, {max(run['arms'] for run in runs)} methods, heads and trees were compared with plain "
        f"decoding{which}, over {tokens / 1e6:.1f} million tokens (answers of {plain:,} tokens, drafted in each way): {differ} "
        "answers differ."
    )


def times(own: Found, control: str) -> str:
    """How many times as fast as a control, with its interval."""
    ratio, low, high = own["against"][control]
    return f"{ratio:.2f}x ({low:.2f} to {high:.2f})"


def seen(methods: Found) -> list[Found]:
    """All arms, the prior's without its first choices where the prior is wrong: none of them is right by definition."""
    return [{**row, "acceptance_vision": None} if row["name"] == "prior" else row for row in named(methods)]


def comparison(results: Results) -> str:
    facts = (
        "n = {n} questions about {recordings} recordings. {methods[prior][vision_share]:.0%} of the answer tokens "
        "({methods[prior][vision_tokens]}) are ones that the blind prior gets wrong. The target answers "
        "{methods[autoregressive][exact_match_short]:.0%} of the short questions exactly right, "
        "{methods[autoregressive][exact_match]:.0%} of all."
    )
    found = results["main-job"]
    return f"{filled(facts, found)}\n\n{table_of(seen(found['methods']), ALL)}"


def shared_cores(results: Results) -> str:
    found = results["shared-cores"]
    facts = "n = {n}, {environment[processor]}, {environment[cores]} cores. Ceiling {methods[auto][ceiling]:.2f}x."
    rows = table_of(seen(found["methods"]), {**ALL, "whole answer, ms": "{total_ms:.0f}"})
    return f"{filled(facts, found)}\n\n{rows}"


def machines(results: Results) -> str:
    now = [run for pattern in ("main-job*.json", "shared-cores*.json") for _, run in results.every(pattern)]
    earlier = [run for _, run in results.every("earlier/*.json")]  # with weights that no longer ship
    runs = [*now, *earlier]
    places = [f"{run['environment']['processor']}, {PLACEMENTS[run['environment']['device_plan']]}" for run in runs]
    places[len(now) :] = [f"{place}, earlier weights" for place in places[len(now) :]]
    forms = {
        "questions": "{n}",
        "load at the end": "{environment[load][0]}",
        "plain decoding, ms": "{methods[autoregressive][total_ms]:.0f}",
        "ceiling": "{methods[autoregressive][ceiling]:.2f}",
    }
    rows = [[head, *(filled(form, run) for run in runs)] for head, form in forms.items()]
    for name in MAIN:
        arms = [run["methods"].get(name, {"speedup": None, "speedup_ci95": None}) for run in runs]
        rows.append([name, *(filled("{speedup+speedup_ci95:.2f}", arm) for arm in arms)])
    for control in ("prior", "hybrid, shuffled events", "hybrid, blank events"):
        against = [run["methods"]["hybrid"]["against"].get(control) for run in runs]
        rows.append([f"hybrid over {control}", *("-" if one is None else spread(one, ".3f") for one in against)])
    rows.append(["answers that are the target's", *map(identical, runs)])
    return table(["", *places], rows)


def identical(run: Found) -> str:
    """Answers of the main arms, all of them lossless, that are those of plain decoding."""
    same = [run["methods"][name]["identical"] for name in MAIN if name in run["methods"]]
    return f"{sum(same)} of {run['n'] * len(same)}"


def against(results: Results) -> str:
    rows = [
        [name, control, spread(ratio), f"{found['slower_share']:.0%}"]
        for name, found in results["main-job"]["methods"].items()
        for control, ratio in found.get("against", {}).items()
        if control in BLIND or control.startswith(f"{name}, ")
    ]
    return table(["method", "control", "times as fast (95 %)", "slower than plain decoding"], rows)


def blind(results: Results) -> str:
    """How the event drafter stands beside the blind prior."""
    methods = results["main-job"]["methods"]
    ratio, low, high = methods["cross-modal"]["against"]["prior"]
    verdict = "faster" if low > 1 else "slower" if high < 1 else "neither faster nor slower, as the interval includes 1"
    return (
        f"On the bundled pair's street the blind prior alone gets {1 - methods['prior']['vision_share']:.0%} of the answer "
        f"tokens right. There `cross-modal` is {ratio:.2f} times as fast as `prior` (95 % interval {low:.2f} to {high:.2f}): "
        f"{verdict}."
    )


def mixed(results: Results) -> str:
    """How the method that drafts from every source stands beside single ones, and beside itself without events."""
    methods = results["main-job"]["methods"]
    single = max(methods[name]["speedup"] for name in ("cross-modal", "eagle", "specvlm", "prior"))
    text = (
        "Over both, `hybrid` is {speedup:.2f} times as fast as plain decoding, the best single source {single:.2f} times. "
        "Little of that is the events': it is {against[hybrid, blank events]:.2f} times as fast as without any."
    )
    return filled(text, {**methods["hybrid"], "single": single})


def charts(results: Results) -> Charts:
    found = results["main-job"]["methods"]
    rows = [value_of(name, one) for name, one in found.items() if name != BASE and one["lossless"]]
    return {"main-job": values("Speedup of whole answers, with 95 % intervals", {"": rows}, FASTER, "ceiling")}


def processors(results: Results) -> str:
    places: dict[tuple[str, int, str], dict[str, None]] = {}
    for name, found in results.every("*.json"):
        for where in environments(found):
            places.setdefault((where["processor"], where["cores"], where["torch"]), {})[f"`{name}`"] = None
    return table(["processor", "cores", "torch", "results"], [[*place, ", ".join(files)] for place, files in places.items()])


def environments(found: Any) -> list[Found]:
    """Every environment that a results file names."""
    if not isinstance(found, dict):
        return []
    own = [found["environment"]] if isinstance(found.get("environment"), dict) else []
    return own + [where for below in found.values() for where in environments(below)]


def profiles(results: Results) -> str:
    """What `plan` predicts for machines that are not here, by the length of an answer."""
    rows = [
        {"profile": name, **outlook(machine.stages, methods_of(machine, tokens), tokens)}
        for name, machine in PROFILES.items()
        for tokens in LENGTHS
    ]
    return table_of(rows, PROFILED)


def reuse(results: Results) -> str:
    found = results["reuse"]
    better = [below for below, own in found["below"].items() if (own["same_ci95"][0] or 0.0) > own["evenly_share"]]
    where = f"better than the control at {', '.join(better)}" if better else "nowhere better than the control"
    asked = filled("{questions} questions about {scenes} scenes of the synthetic street, 8 frames a second.", found)
    return f"{asked}\n\n{table_of(named(found['below']), REUSED)}\n\nChoosing them by events is {where}."


PAGES: dict[str, dict[str, Block]] = {
    "README.md": {"figures": readme},
    "docs/index.md": {"figures": readme},
    "docs/start/demo.md": {"blind": blind},
    "docs/concepts/ceiling.md": {"profiles": profiles, "blind": blind},
    "docs/results/index.md": {
        **{"comparison": comparison, "shared": shared_cores, "machines": machines},
        **{"against": against, "blind": blind, "processors": processors},
    },
    "docs/limits.md": {"blind": blind, "mixed": mixed},
    "docs/how-to/live.md": {"reuse": reuse},
}
