"""A vocabulary as flat arrays."""

import naive_grammar
import numpy as np

from diskmoe.grammar_draft.token_sets import LEAVES, WITHIN
from diskmoe.grammar_draft.trie import OTHERS, SOUND, WHOLE, trie_of

TEXTS = [
    b"a",
    b"ab",
    b"abc",
    b"ax\xc3",
    b"ax\xc3\xa9",
    b"b\xff",
    b"\xa9",
    b"\xc3\xa9a",
    b"zz",
    b"a",
    b" a",
    b" a b",
    b" ",
    b"  ",
    b"l" * 33,
    b"l" * 40,
]
SPELLED = sorted((data, token) for token, data in enumerate(TEXTS))


def has(words: np.ndarray, token: int) -> bool:
    return bool(int(words[token >> 6]) >> (token & 63) & 1)


def test_nodes_stand_in_preorder_with_their_tokens_and_the_end_of_their_subtree():
    trie = trie_of(SPELLED, 1)
    nodes = naive_grammar.trie(SPELLED)
    assert trie.byte.tolist() == [data[-1] for data, _, _ in nodes]
    assert trie.depth.tolist() == [len(data) for data, _, _ in nodes]
    assert trie.end.tolist() == [i + size for i, (_, _, size) in enumerate(nodes)]
    spans = zip(trie.first[:-1], trie.first[1:], strict=True)
    assert [trie.tokens[a:b].tolist() for a, b in spans] == [tokens for _, tokens, _ in nodes]
    assert trie.deepest == 40


def test_a_node_knows_the_bytes_behind_it():
    trie = trie_of(SPELLED, 1)
    for i, (data, _, size) in enumerate(naive_grammar.trie(SPELLED)):
        behind = {d[-1] for d, _, _ in naive_grammar.trie(SPELLED)[i + 1 : i + size]}
        ascii_bytes = sum(1 << byte for byte in behind if byte < 128)
        assert int(trie.below[i, 0]) | int(trie.below[i, 1]) << 64 == ascii_bytes
        assert bool(trie.kinds[i] & OTHERS) == any(byte >= 128 for byte in behind)
        texts = [d for d in TEXTS if d.startswith(data)]
        boundary = naive_grammar.well_begun(data + b"a")
        sound = all(map(naive_grammar.well_begun, texts))
        assert bool(trie.kinds[i] & SOUND) == sound
        assert bool(trie.kinds[i] & WHOLE) == (boundary and sound)


def test_sets_of_tokens_by_the_bytes_they_have_and_begin_with():
    sets = trie_of(SPELLED, 1).sets
    for token, data in enumerate(TEXTS):
        assert has(sets.spelled, token)
        assert has(sets.broken, token) == (not naive_grammar.well_begun(data))
        for row in range(2 * LEAVES):
            some = naive_grammar.bytes_of_row(row)
            assert has(sets.having[row], token) == any(byte in some for byte in data)
            assert has(sets.starting[row], token) == (data[0] in some)
            behind = data[0:1] == b" " and len(data) > 1 and data[1] in some
            assert has(sets.second[row], token) == behind
        assert has(sets.again, token) == (b" " in data[1:])
        for length in range(WITHIN):
            assert has(sets.within[length], token) == (len(data) <= length)
    assert sets.longest.tolist() == [TEXTS.index(b"l" * 40), TEXTS.index(b"l" * 33)]
    assert sets.lengths.tolist() == [40, 33]


def test_a_vocabulary_may_be_empty():
    assert len(trie_of([], 1).byte) == 0


def test_heights_are_known():
    trie = trie_of(SPELLED, 1)
    nodes = naive_grammar.trie(SPELLED)
    for i, (data, _, size) in enumerate(nodes):
        longest = max(len(d) for d, _, _ in nodes[i : i + size])
        assert trie.nodes[i, 3] >> 16 == longest - len(data)
