"""A tokenizer of letters, and grammars and sources that know beforehand what a text will be.

plain = list(decode(model, prompt, ...))
for name, grammar in grammars(plain, Random(1)):
    GrammarSource(Automaton(parse(grammar)), Letters(), prompt)
Scripted(plain, Random(1), share=0.8)
"""

from collections.abc import Generator, Iterator, Sequence
from random import Random

from diskmoe.mtp.source import GRADES, Draft

VOCAB = 96


class Letters:
    """Token i prints the character 32 + i; every token is one byte."""

    token_bytes: Sequence[bytes | None] = tuple(bytes([32 + i]) for i in range(VOCAB - 1)) + (None,)

    @property
    def special_text(self) -> dict[int, str]:
        return {VOCAB - 1: "<think>"}

    def encode(self, text: str) -> list[int]:
        return [byte - 32 for byte in text.encode() if 32 <= byte < 32 + VOCAB - 1]


def literal(ids: Sequence[int]) -> str:
    """GBNF for a text of these tokens; those that print nothing are named."""
    return " ".join(f"<[{i}]>" if i == VOCAB - 1 else f'"\\x{32 + i:02x}"' for i in ids)


def grammars(plain: list[int], random: Random) -> Iterator[tuple[str, str]]:
    """Right, wrong, desyncing and hostile grammars for a text that is known."""
    yield "right", f"root ::= {literal(plain)}"
    yield "right at times", f"root ::= {literal(plain[:7])} ( . | {literal(plain[9:20])} )*"
    wrong = [*plain]
    for place in random.sample(range(len(plain)), 6):
        wrong[place] = random.randrange(VOCAB - 1)
    yield "desyncing", f"root ::= ( {literal(wrong)} )+"
    yield "wrong", "root ::= ( . " + literal(random.choices(range(VOCAB - 1), k=30)) + " )+"
    yield "ids that do not exist", "root ::= . <[99999999]> <[96]>"
    yield "hostile", "root ::= a+\na ::= . | . . | a a"


class Scripted:
    """A source that knows the text and says it, each token rightly with probability `share`."""

    gave_up = ""
    grades: tuple[float, ...] = ()

    def __init__(
        self, plain: Sequence[int], random: Random, share: float, name: str, cheap: bool
    ) -> None:
        self.name, self.cheap = name, cheap
        self.prior = (share,)
        self._plain = plain
        self._random = random
        self._share = share
        self._at = 0

    def drafts(self, chain: Sequence[int]) -> Generator[Draft, None, None]:
        for token in [*self._plain[self._at + len(chain) :], 5, -1]:
            right = self._random.random() < self._share
            token = token if right else self._random.randrange(VOCAB + 1)
            yield Draft(token, self._random.randrange(GRADES))

    def observe(self, tokens: Sequence[int]) -> None:
        self._at += len(tokens)
