"""The figures of the main comparison in README and docs, of what sharing frames costs, and of what `plan` predicts."""

from __future__ import annotations

import textwrap
from typing import Any

from eventspec.experiments.charts import value_of, values
from eventspec.experiments.names import ALL_CORES, BASE, BLIND
from eventspec.experiments.plan import outlook
from eventspec.experiments.profiles import PROFILES, methods_of
from eventspec.experiments.reports import FASTER, Block, Charts, Found, Results
from eventspec.experiments.tables import Column, figure, figures, known, named, shown, spread, table, table_of

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
ALL: dict[str, Column] = {
    "method": "{name}",
    "speedup (95 %)": figures("speedup"),
    "tau": "{tau:.2f}",
    "accepted of drafted levels": known("acceptance"),
    "first choice right where the prior is wrong": known("acceptance_vision"),
    "first provisional, ms": known("first_provisional_ms", ".0f"),
    "of them kept": known("provisional_kept"),
    "first committed, ms": "{first_committed_ms:.0f}",
    "identical": "{identical}",
}
LENGTHS = (10, 40, 100)
SHARES = (0.806, 0.6, 0.4, 0.25, 0.15)
"""Prefill shares of the table: the first is the one that the early notes of this research promised 4-5x for."""
MAIN = ("hybrid", "cross-modal", "cross-modal, shuffled events", "eagle", "prior", "auto", ALL_CORES)
"""Arms that stand beside each other for every machine."""
PLACEMENTS = {"two": "a core a model", "auto": "cores shared out"}


def readme(results: Results) -> str:
    """README's table, what it means, and what was compared token by token."""
    found, shared = results["main-job"], results["shared-cores"]
    methods, together, where = found["methods"], shared["methods"], found["environment"]
    for run in (found, shared):
        assert all(run["methods"][name]["identical"] == run["n"] for name in ROWS if name in run["methods"])
    own, base, prior, hybrid = (methods[name] for name in ("cross-modal", BASE, "prior", "hybrid"))
    columns: dict[str, Column] = {
        "method": lambda row: ROWS[row["name"]],
        "speedup (95 %), cores shared out": lambda row: (
            figure(together[row["name"]], "speedup") if row["name"] in together else "-"
        ),
        "speedup, one core a model": figures("speedup"),
        "first guess": lambda row: shown(row["first_provisional_ms"], ".0f", " ms"),
        "first token": "{first_committed_ms:.0f} ms",
        "tau": "{tau:.2f}",
    }
    rows = table_of(named({name: methods[name] for name in ROWS}), columns)
    plain, chosen = (together[name] for name in (BASE, "auto"))
    early, first = own["first_provisional_ms"], base["first_committed_ms"]
    kept, by_prior, by_others = (one["provisional_kept"] for one in (own, prior, methods["cross-modal, shuffled events"]))
    gains = (
        f"{where['processor']}, {where['cores']} cores, n = {found['n']}; the answers of each row are the target's own. By "
        "default cores are shared out: a target without a drafter beside it has all of them. An answer then takes "
        f"{plain['total_ms']:.0f} ms, with `auto` {chosen['total_ms']:.0f}, of a ceiling of {chosen['ceiling']:.2f}x. The "
        f"event camera is not why: `auto` is {times(chosen, 'prior')} as fast as the blind `prior` and "
        f"{times(chosen, 'auto, shuffled events')} as fast as with another clip's events. With one core a model, as on two "
        f"accelerators, the ceiling is {own['ceiling']:.2f}x, and `hybrid` is {times(hybrid, 'prior')} as fast as `prior` and "
        f"{times(hybrid, 'hybrid, shuffled events')} as fast as with another clip's events. {1 - prior['vision_share']:.0%} of "
        f"the tokens can be guessed blind. A first guess that has seen the scene comes after {early:.0f} ms, where the "
        f"target's first token comes after {first:.0f}; {kept:.0%} of the guesses are confirmed ({by_prior:.0%} of the "
        f"prior's, {by_others:.0%} with another clip's events)."
    )
    words = [textwrap.fill(text, 128) for text in (gains, exact(results["identity"], where["pair_sha256"]))]
    return "\n\n".join([rows.replace("\u00a0", " "), *words])


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


def all_arms(methods: Found, whole: bool = False) -> str:
    """A row for every arm; `whole`: with the time of a whole answer."""
    rows = [{**row, "acceptance_vision": None} if row["name"] == "prior" else row for row in named(methods)]  # 0 by definition
    return table_of(rows, ALL | ({"whole answer, ms": "{total_ms:.0f}"} if whole else {}))


def comparison(results: Results) -> str:
    found = results["main-job"]
    base, prior = found["methods"][BASE], found["methods"]["prior"]
    facts = (
        f"n = {found['n']} questions about {found['recordings']} recordings. {prior['vision_share']:.0%} of the answer tokens "
        f"({prior['vision_tokens']}) are ones that the blind prior gets wrong. The target answers "
        f"{base['exact_match_short']:.0%} of the short questions exactly right, {base['exact_match']:.0%} of all."
    )
    return f"{facts}\n\n{all_arms(found['methods'])}"


def shared_cores(results: Results) -> str:
    found = results["shared-cores"]
    where, methods = found["environment"], found["methods"]
    facts = f"n = {found['n']}, {where['processor']}, {where['cores']} cores. Ceiling {methods['auto']['ceiling']:.2f}x."
    return f"{facts}\n\n{all_arms(methods, whole=True)}"


def machines(results: Results) -> str:
    now = [run for pattern in ("main-job*.json", "shared-cores*.json") for _, run in results.every(pattern)]
    earlier = [run for _, run in results.every("earlier/*.json")]  # with weights that no longer ship
    runs = [*now, *earlier]
    places = [f"{run['environment']['processor']}, {PLACEMENTS[run['environment']['device_plan']]}" for run in runs]
    places[len(now) :] = [f"{place}, earlier weights" for place in places[len(now) :]]
    base = [run["methods"][BASE] for run in runs]
    rows: list[list[object]] = [
        ["questions", *(run["n"] for run in runs)],
        ["load at the end", *(run["environment"]["load"][0] for run in runs)],
        ["plain decoding, ms", *(f"{one['total_ms']:.0f}" for one in base)],
        ["ceiling", *(f"{one['ceiling']:.2f}" for one in base)],
    ]
    for name in MAIN:
        rows.append([name, *(figure(run["methods"][name], "speedup") if name in run["methods"] else "-" for run in runs)])
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
    own = methods["hybrid"]
    single = max(methods[name]["speedup"] for name in ("cross-modal", "eagle", "specvlm", "prior"))
    return (
        f"Over both, `hybrid` is {own['speedup']:.2f} times as fast as plain decoding, the best single source {single:.2f} "
        f"times. Little of that is the events': it is {spread(own['against']['hybrid, blank events'])} times as fast as "
        "without any."
    )


def charts(results: Results) -> Charts:
    found = results["main-job"]["methods"]
    rows = [value_of(name, one) for name, one in found.items() if name != BASE and one["lossless"]]
    return {"main-job": values("Speedup of whole answers, with 95 % intervals", {"": rows}, FASTER, "ceiling")}


def processors(results: Results) -> str:
    places: dict[tuple[str, int, str], list[str]] = {}
    for name, found in results.every("*.json"):
        for where in environments(found):
            files = places.setdefault((where["processor"], where["cores"], where["torch"]), [])
            if f"`{name}`" not in files:
                files.append(f"`{name}`")
    rows = [[*place, ", ".join(files)] for place, files in places.items()]
    return table(["processor", "cores", "torch", "results"], rows)


def environments(found: Any) -> list[Found]:
    """Every environment that a results file names."""
    if not isinstance(found, dict):
        return []
    own = [found["environment"]] if isinstance(found.get("environment"), dict) else []
    return own + [where for below in found.values() for where in environments(below)]


def ceilings(results: Results) -> str:
    heads = ["prefill share", *(f"{share:.1%}" for share in SHARES)]
    return table(heads, [["ceiling", *(f"{1 / share:.2f}x" for share in SHARES)]])


def profiles(results: Results) -> str:
    kinds = {
        "cross-modal": "`cross-modal` as accepted in recorded runs",
        "cross-modal, whole head start accepted": "head start accepted whole, plain decoding after it",
    }
    rows = []
    for name, machine in PROFILES.items():
        for tokens in LENGTHS:
            found = outlook(machine.stages, methods_of(machine, tokens), tokens)
            speeds = [f"{found['methods'][kind]['speedup']:.2f}x" for kind in kinds]
            rows.append([f"`{name}`", tokens, f"{found['prefill_share']:.0%}", f"{found['ceiling']:.2f}x", *speeds])
    return table(["profile", "tokens", "prefill share", "ceiling", *kinds.values()], rows)


def reuse(results: Results) -> str:
    found = results["reuse"]
    rows = []
    for below, own in found["below"].items():
        shares = [figure(own, f"{part}_share", ".0%", f"{part}_ci95") for part in ("same", "evenly")]
        rows.append([below, shown(own["encoded_share"]), *shares])
    heads = ["`reuse_below`", "frames encoded", "answers that stay (95 %)", "control: as many frames, evenly chosen"]
    asked = f"{found['questions']} questions about {found['scenes']} scenes of the synthetic street, 8 frames a second."
    better = [below for below, own in found["below"].items() if (own["same_ci95"][0] or 0.0) > own["evenly_share"]]
    where = f"better than the control at {', '.join(better)}" if better else "nowhere better than the control"
    part = f"The control shares as many frames of each scene, evenly chosen. Choosing them by events is {where}."
    return "\n\n".join([asked, table(heads, rows), part])


PAGES: dict[str, dict[str, Block]] = {
    "README.md": {"figures": readme},
    "docs/index.md": {"figures": readme},
    "docs/start/demo.md": {"blind": blind},
    "docs/concepts/ceiling.md": {"ceilings": ceilings, "profiles": profiles, "blind": blind},
    "docs/results/index.md": {
        **{"comparison": comparison, "shared": shared_cores, "machines": machines},
        **{"against": against, "blind": blind, "processors": processors},
    },
    "docs/limits.md": {"blind": blind, "mixed": mixed},
    "docs/how-to/live.md": {"reuse": reuse},
}
