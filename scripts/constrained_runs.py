"""Many runs of a model that must follow schemas made by chance: does each do so?

    python scripts/constrained_runs.py --n 1000

Temperatures from 0 to 1.5, filters, both ways to enforce, with drafts and without, and NGEN so tight
that many texts are cut off. A text that is cut off must begin a document; one that has ended by itself
must be a document, by a JSON reader and a reading of schemas that have nothing in common with ours.
Every text with drafts is made without as well, and must be the same to the token.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from random_schemas import fits, random_schema

from diskmoe.engine.api import Model, Options, Run, Sampling
from diskmoe.engine.places import demo_dir
from diskmoe.grammar_draft.automaton import Automaton
from diskmoe.grammar_draft.languages import from_schema
from diskmoe.grammar_draft.rules import Grammar

PROMPTS = ("Describe Bob as JSON.", "Give me a record.", "A number?", "List three colours.")


def run_one(drafting: Model, plain: Model, random: Random) -> tuple[str, Run, str]:
    """(what is wrong, "" for nothing; the run; how it was made)."""
    schema = random_schema(random)
    whitespace = random.choice(["flexible", "compact"])
    grammar = from_schema(schema, whitespace=whitespace)
    sampling = Sampling(
        temperature=random.choice([0.0, 0.3, 0.7, 1.0, 1.5]),
        top_k=random.choice([0, 0, 40]),
        top_p=random.choice([1.0, 1.0, 0.9]),
        min_p=random.choice([0.0, 0.0, 0.05]),
        seed=random.randrange(1 << 30),
    )
    mode = random.choice(["1", "mask", "check"])
    how = {
        "prompt": random.choice(PROMPTS),
        "grammar": grammar,
        "sampling": sampling,
        "limit": random.choice([2, 8, 20, 40, 80]),
    }
    run = drafting.generate(**how, constrain=mode)
    list(run)
    wrong = _wrong(drafting, run, grammar, schema)
    if not wrong:
        alone = plain.generate(**how, constrain="mask")
        list(alone)
        if alone.token_ids != run.token_ids or alone.stats.stop_reason != run.stats.stop_reason:
            wrong = f"without drafts and by masks it is {alone.text!r}"
    return wrong, run, f"{sampling}, {mode}, {whitespace}, {json.dumps(schema)}"


def _wrong(model: Model, run: Run, grammar: Grammar, schema: dict) -> str:
    assert model.text.tokenizer is not None
    data = model.text.tokenizer.decode_bytes(run.token_ids)
    automaton = Automaton(grammar)
    if automaton.walk(automaton.start, data) is None:
        return "no beginning of a document"
    if run.stats.stop_reason in ("limit", "context full"):
        return ""
    try:
        return "" if fits(schema, json.loads(data)) else "a document of another schema"
    except ValueError as error:
        return f"no document: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=demo_dir(None))
    args = parser.parse_args()
    random, ends = Random(args.seed), Counter()
    tokens = forwards = 0
    began = time.monotonic()
    options = Options(ctx=256)
    with (
        Model.load(args.model, options) as drafting,
        Model.load(args.model, Options(ctx=256, draft_rows=0)) as plain,
    ):
        for number in range(args.n):
            wrong, run, how = run_one(drafting, plain, random)
            if wrong:
                print(f"run {number}: {run.text!r}: {wrong} ({how})")
                return 1
            ends[run.stats.stop_reason] += 1
            tokens += run.stats.tokens
            forwards += run.stats.decode.forwards
            if number % 50 == 49:
                print(
                    f"{number + 1} runs, {time.monotonic() - began:.0f} s: {dict(ends)}", flush=True
                )
    print(
        f"{args.n} runs, all as they must be: {dict(ends)}; {tokens} tokens, "
        f"{tokens / max(1, forwards):.2f} a forward"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
