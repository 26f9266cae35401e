"""Writes tests/golden/gbnf_cases.jsonl and schema_cases.jsonl: what llama.cpp's own tests say about
grammars and schemas.

    python scripts/make_gbnf_cases.py EXTRACTED.jsonl LLAMA_CPP/grammars tests/golden

EXTRACTED.jsonl holds one object a line, read out of llama.cpp's test sources (MIT licence): ``kind``
"gbnf" with grammar, root, accept and reject, "build" with grammar, root and ok, or "schema" with
schema, accept and reject. Only these facts are kept. To them come its example grammars, comments
removed, with strings of our own. Its tests of llguidance read schemas as the specification does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

KEPT = ("name", "grammar", "root", "accept", "reject", "ok", "why")

EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "arithmetic": (
        ["x = 1\n", "a1 +2*(b -3)/c= y\n", "1=2\n3=4\n", "( ( z ))= 9 \n"],
        ["", "x = 1", "1 + = 2\n", "1 = 2 + 3\n", "(1 = 2\n", "_x = 1\n"],
    ),
    "c": (
        ["", "int main(){}", "float f(int x){return x+1;}", "char g(){int a = 1;int b = -a*( 2 );}",
         "int m(){while(i<10){i = i+1;}}", "int m(){if(a==b){}else{}}", "int m(){// hi\n}"],
        ["int main()", "main(){}", "int main(){return 1}", "int m(){/* open }", "int 1x(){}"],
    ),
    "chess": (
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 d5\n2. c4 dxc4\n3. e8=Q+ O-O-O#\n10. Nbd2 Rfe1\n"],
        ["1. e4 e5\n", "1. e4\n2. d4 d5\n", "1. e9 e5\n2. a3 a6\n", "1. e4 e5\n2. Nf3 Nc6"],
    ),
    "english": (
        ["Hello, world!", "a\tb\nc", "50% [x] {y}"],
        ["", " a", "a  b", "caf\u00e9", "a "],
    ),
    "japanese": (
        ["\u3053\u3093\u306b\u3061\u306f", "\u30ab\u30bf \u4eee\u540d\u3001\u6f22\u5b57"],
        ["", "abc", "\u3042 ", "\u3042a", "\uac00"],
    ),
    "json": (
        ["{}", '{"a":1}', '{ "a" : [ 1, 2.5, -3e5, "x\\n\\u00e9", true, null ] , "b": {} }',
         '{"\u00e9\U0001f600": ""}', '{\n  "k": 0}'],
        ["", "[]", '{"a"}', '{"a":01}', '{"a":1,}', '{"a":"\n"}', "{'a':1}", '{"a":tru}', "{"],
    ),
    "json_arr": (
        ["[\n]", '[\n1,\n2]', '[\n{"a":[1,2]},\n"x"]'],
        ["[]", "[\n1, 2]", "{}", "[\n1]\n", "[\n"],
    ),
    "list": (
        ["- a\n", "- milk\n- eggs \U0001f95a\n"],
        ["", "- \n", "-a\n", "- a", "* a\n", "- a\n\n", "- a\u2028\n"],
    ),
}  # fmt: skip


def without_comments(text: str) -> str:
    """Comments in these files stand on lines of their own or behind a blank, none in a literal."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return "\n".join(line.split(" # ")[0].rstrip() for line in lines).strip() + "\n"


def main() -> None:
    extracted, grammars, golden = map(Path, sys.argv[1:4])
    records: list[dict[str, object]] = []
    schemas: list[dict[str, object]] = []
    for line in extracted.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] in ("gbnf", "build"):
            records.append({key: record[key] for key in KEPT if key in record})
        elif record["kind"] == "schema":
            schema = json.loads(record["schema"])
            profile = "json-schema" if "llguidance" in record["source"] else "llama.cpp"
            case = {"name": record["name"], "profile": profile, "schema": schema}
            if "DISABLED" in record["schema"]:
                case["lax"] = True
            schemas.append(case | {key: record[key] for key in ("accept", "reject")})
    for name, (accept, reject) in EXAMPLES.items():
        text = without_comments((grammars / f"{name}.gbnf").read_text(encoding="utf-8"))
        records.append(
            {"name": name, "grammar": text, "root": "root", "accept": accept, "reject": reject}
        )
    for out, lines in (("gbnf_cases.jsonl", records), ("schema_cases.jsonl", schemas)):
        with (golden / out).open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(f"{len(lines)} records in {golden / out}")


if __name__ == "__main__":
    main()
