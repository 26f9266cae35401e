"""What `bench grammar` follows: grammars as each program wants them, and documents."""

from __future__ import annotations

import json

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] ws term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t]*
"""
ARITHMETIC_LARK = r"""
start: (expr "=" WS term "\n")+
expr: term (/[-+*\/]/ WS term)*
term: IDENT WS | NUM WS | "(" WS expr ")" WS
IDENT: /[a-z][a-z0-9_]*/
NUM: /[0-9]+/
WS: /[ \t]*/
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "role": {"enum": ["admin", "administrator", "guest", "user"]},
    },
    "required": ["name", "age", "role"],
    "additionalProperties": False,
}
DOCUMENTS = {
    "JSON": [
        json.dumps(
            {
                "title": "Reise nach Zürich — 旅行 🚄",
                "tags": ["train", "mountains", "näher", "日本語"],
                "stops": [
                    {"name": "Genève", "minutes": 12, "open": True, "notes": None},
                    {
                        "name": 'Bern "Hbf"',
                        "minutes": 7.5,
                        "open": False,
                        "notes": "coffee\nand cake",
                    },
                    {"name": "Olten", "minutes": -1e3, "open": True, "notes": ["a", ["b", {}]]},
                ],
                "price": {"amount": 129.90, "currency": "CHF", "parts": [64.95, 64.95]},
                "comment": "Please keep the window seat, it is a birthday present for my sister.",
            },
            ensure_ascii=False,
        )
    ],
    "schema": [
        '{"name": "Ada Lovelace", "age": 36, "role": "administrator"}',
        '{"name": "Jürgen Müller-Lüdenscheid", "age": 7, "role": "guest"}',
        '{"name": "王小明", "age": 101, "role": "admin"}',
    ],
    "arithmetic": ["(alpha + 12) * (beta_2 - (7 / gamma)) + ((x1 * 34) - (y + 5)) / delta = 42\n"],
}
