"""A vocabulary as flat arrays."""

import naive_grammar
import numpy as np

from diskmoe.grammar_draft.trie import OTHERS, WHOLE, trie_of

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
    assert trie.deepest == 4


def test_a_node_knows_the_bytes_behind_it():
    trie = trie_of(SPELLED, 1)
    for i, (data, _, size) in enumerate(naive_grammar.trie(SPELLED)):
        behind = {d[-1] for d, _, _ in naive_grammar.trie(SPELLED)[i + 1 : i + size]}
        ascii_bytes = sum(1 << byte for byte in behind if byte < 128)
        assert int(trie.below[i, 0]) | int(trie.below[i, 1]) << 64 == ascii_bytes
        assert bool(trie.kinds[i] & OTHERS) == any(byte >= 128 for byte in behind)
        texts = [d for d in TEXTS if d.startswith(data)]
        boundary = naive_grammar.well_begun(data + b"a")
        assert bool(trie.kinds[i] & WHOLE) == (
            boundary and all(map(naive_grammar.well_begun, texts))
        )


def test_sets_of_tokens_by_the_bytes_they_have():
    trie = trie_of(SPELLED, 1)
    for token, data in enumerate(TEXTS):
        assert has(trie.spelled, token)
        assert has(trie.broken, token) == (not naive_grammar.well_begun(data))
        for byte in range(128):
            assert has(trie.having[byte], token) == (byte in data)
        assert has(trie.having[128], token) == any(byte >= 128 for byte in data)


def test_a_vocabulary_may_be_empty():
    assert len(trie_of([], 1).byte) == 0
