"""Random documents: at every prefix the mask is what feeding every token says, and every walk ends.

python tests/fuzz_masks.py --documents 2000
"""

from __future__ import annotations

import argparse
import random
from collections import Counter

import numpy as np
from slow_constraint import SlowConstraint

from diskmoe.grammar_draft.constraint import Constraint
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.languages import from_schema
from diskmoe.grammar_draft.library import load, shipped
from diskmoe.grammar_draft.vocabulary import Vocabulary

GRAMMARS = {
    "arithmetic": 'root ::= (e "=" ws t "\\n")+\ne ::= t ([-+*/] ws t)*\n'
    't ::= [a-z] [a-z0-9_]* ws | [0-9]+ ws | "(" ws e ")" ws\nws ::= [ \\t\\n]*',
    "ambiguous": 'root ::= e "."\ne ::= e "+" e | e "-" e | "(" e ")" | [a-z0-9]+',
    "palindromes": 'root ::= "<" p ">"\np ::= "a" p "a" | "b" p "b" | "\u00e9" p "\u00e9" | "c"?',
    "side by side": 'root ::= a "x" | b "y"\na ::= "(" a ")" | [a-z]+\nb ::= "(" b ")" | [a-z0-9]+',
    "counted": 'root ::= "<" [a-zA-Z ]{3,40} ">" ("," [^<>]{2,12}){0,30} [a-y]{5} [a-z]* "."',
    "counted at the end": 'root ::= x{2,9} [a-zA-Z0-9,. ]{0,25}\nx ::= [0-9]{1,3} ("=" [a-zé ]{0,8})? ";"',
    "thinking": "root ::= <[0]> (!<[1]>)* <[1]> [a-z]+",
}
SCHEMAS = {
    "short strings": {
        "type": "array",
        "items": {"type": "string", "maxLength": 30},
        "maxItems": 25,
    },
    "lengths": {"type": "string", "minLength": 9, "maxLength": 60},
    "at least": {"type": "array", "items": {"type": "string", "minLength": 7}, "minItems": 3},
    "a row of letters": {"type": "string", "pattern": "^[a-zé]{4,50}$"},
}
MOST_TOKENS = 300  # of a document; behind them what brings it to its end sooner is preferred


def vocabulary(choose: random.Random) -> Vocabulary:
    """Special tokens, all bytes, and strings of what grammars have."""
    parts = [*'{}[]":,()+-*/= \n.0123456789', '"', "\\", "\\n", "true", "null", "a", "b", "x", "id"]
    parts += ["é", "日", "\u20ac", '": ', '", "', "}]", "  ", "fit", "_category", "score", "e", "E"]
    texts = {"".join(choose.choices(parts, k=choose.randint(2, 5))) for _ in range(400)}
    letters = "abcdefghijklmnopqrstuvwxyz ABC019,é日"
    texts |= {"".join(choose.choices(letters, k=choose.randint(1, 25))) for _ in range(300)}
    texts |= {"".join(choose.choices(letters[:26], k=choose.randint(1, 25))) for _ in range(200)}
    spelled = [text.encode()[: choose.randint(1, 30)] for text in sorted(texts)]
    words = [None, None, None, *(bytes([b]) for b in range(256)), *spelled]
    return Vocabulary(words, {0: "<think>", 1: "</think>", 2: "<end>"}, {2})


def follow(
    constraint: Constraint,
    slow: SlowConstraint,
    brute: dict[object, set[int]],
    choose: random.Random,
    tally: Counter[str],
) -> None:
    """One document. brute: what feeding every token said, by the slow constraint's state."""
    state, twin = constraint.start, slow.start
    for place in range(20 * MOST_TOKENS):
        known = brute.get(twin)
        if known is None:
            known = brute[twin] = slow.mask(twin)
            tally["masks by brute force"] += 1
        bits = np.unpackbits(constraint.mask(state).view(np.uint8), bitorder="little")
        found = np.flatnonzero(bits).tolist()
        assert set(found) == known, (constraint.name, place)
        assert constraint.may_end(state) == twin.may_end
        assert found, f"{constraint.name}: nothing may follow, and the text may not end"
        tally["prefixes"] += 1
        token = choose.choice(found)
        if place > MOST_TOKENS:
            closers = [t for t in found if slow.vocabulary.texts[t] in CLOSERS]
            token = choose.choice(closers) if closers and choose.random() < 0.9 else token
            token = 2 if 2 in known else token
        if token == 2:
            tally["documents"] += 1
            return
        assert constraint.allows(state, token)
        after, behind = constraint.accept(state, token), slow.accept(twin, token)
        assert after is not None and behind is not None, (constraint.name, place, token)
        state, twin = after, behind
    raise AssertionError(f"{constraint.name}: a walk did not end")


CLOSERS = {b'"', b"x", b"y", b"}", b"]", b")", b"\n", b"c", b".", b">", b"=", None}


def run(documents: int, seed: int) -> Counter[str]:
    """Documents of all grammars in turn."""
    choose = random.Random(seed)
    words = vocabulary(choose)
    grammars = [load(name) for name in shipped()]
    grammars += [parse(text, name) for name, text in GRAMMARS.items()]
    grammars += [from_schema(schema, name=name) for name, schema in SCHEMAS.items()]
    tally: Counter[str] = Counter()
    for number, grammar in enumerate(grammars):
        constraint, slow = Constraint(grammar, words), SlowConstraint(grammar, words)
        tally[constraint.how.partition(", ")[2].partition(":")[0]] += 1
        brute: dict[object, set[int]] = {}
        for _ in range(
            documents * (number + 1) // len(grammars) - documents * number // len(grammars)
        ):
            follow(constraint, slow, brute, choose, tally)
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(dict(run(given.documents, given.seed)))
