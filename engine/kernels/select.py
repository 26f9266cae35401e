"""Passes over a vocabulary's logits that leave few tokens to choose among, and never sort.

The rule of this file: logits are looked at in blocks of 64 ids. One pass finds every block's largest
logit; the passes behind it leave out the blocks whose largest cannot matter, which on real logits are
nearly all. A block's word of `allowed` says which of its ids may be taken (bit i: id 64 * block + i);
what else stands there is not looked at, so a mask costs an `and` of words and no pass of its own.

Of equals the lowest ids are kept. Weights are e**x in float64 with x = (logit - largest) /
temperature, by additions and products alone: their bits do not depend on the machine.
"""

import numpy as np

from diskmoe.compiled.functions import inner, kernel
from diskmoe.engine.kernels.simd import (
    LANES,
    add,
    address,
    bits_double,
    chosen,
    double_bits,
    exp,
    float_bits,
    fma,
    lane_max,
    lane_sum,
    larger,
    load_f32,
    splat,
)

BLOCK = 64  # ids of a word of `allowed`
DIGITS = 11  # bits of a logit that `heaviest` looks at in one pass
ALL = np.uint64(2**64 - 1)
LOWEST = np.float32(-np.inf)

_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 21 zeros at its end: products with exponents are exact
_LN2_LOW = 1.9082149292705877e-10
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding and taking it away rounds to an integer
_LEAST = -700.0  # e**x is no denormal down to here; what is lighter weighs nothing


@inner
def allows(allowed, i):  # pragma: no cover - compiled
    """Whether an id may be taken."""
    return (allowed[i >> 6] >> np.uint64(i & 63)) & np.uint64(1) != np.uint64(0)


@inner
def _exp(x):  # pragma: no cover - compiled
    """e**x for x in [-700, 700], relative error below 4e-16 (Taylor up to 1/12!)."""
    rounded = x * _LOG2E + _ROUND
    n = rounded - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * bits_double((double_bits(rounded) + 1023) << 52)


@inner(error_model="numpy")  # a temperature next to 0 makes an infinity, which weighs nothing
def weight(logit, largest, temperature):  # pragma: no cover - compiled
    """What a token weighs; the likeliest weighs 1."""
    x = (np.float64(logit) - np.float64(largest)) / temperature
    heavy = _exp(max(x, _LEAST))  # without a branch, so that loops become vector code
    return heavy if x >= _LEAST else 0.0


@kernel
def largest_of_blocks(logits, allowed, maxima):  # pragma: no cover - compiled
    """The largest logit of each block that may be taken, to maxima f32 (blocks,).

    logits f32 (n,), allowed u64 (blocks or more,). Returns the lowest id of the largest of all:
    -1 where none may be taken, -2 where one that may is not finite.
    """
    zero, lowest = splat(np.float32(0.0)), splat(LOWEST)
    wrong = zero
    fine = True
    best, best_block = LOWEST, -1
    for block in range(len(maxima)):
        first = block * BLOCK
        word = allowed[block]
        top = LOWEST
        if word != np.uint64(0) and first + BLOCK <= len(logits):
            at = address(logits) + first * 4
            lanes = lowest
            if word == ALL:
                for c in range(0, BLOCK, LANES):
                    v = load_f32(at + c * 4)
                    lanes = larger(v, lanes)
                    wrong = fma(v, zero, wrong)  # infinities and NaN become NaN
            else:
                for c in range(0, BLOCK, LANES):
                    v = load_f32(at + c * 4)
                    bits = np.int64(word >> np.uint64(c))
                    lanes = larger(chosen(bits, v, lowest), lanes)
                    wrong = fma(chosen(bits, v, zero), zero, wrong)
            top = lane_max(lanes)
        elif word != np.uint64(0):
            for i in range(first, min(first + BLOCK, len(logits))):
                if allows(allowed, i):
                    fine &= np.isfinite(logits[i])
                    top = max(top, logits[i])
        maxima[block] = top
        if top > best:
            best, best_block = top, block
    if not fine or lane_sum(wrong) != np.float32(0.0):
        return -2
    if best_block < 0:
        return -1
    best_id = best_block * BLOCK
    while logits[best_id] != best or not allows(allowed, best_id):
        best_id += 1
    return best_id


@kernel(error_model="numpy")
def total_weight(logits, allowed, maxima, largest, temperature):  # pragma: no cover - compiled
    """The weights of all that may be taken, added: in blocks as the tree of halves, then in order."""
    part = np.empty(BLOCK, np.float64)
    total = 0.0
    for block in range(len(maxima)):
        if maxima[block] == LOWEST:
            continue
        first = block * BLOCK
        if first + BLOCK <= len(logits):
            for j in range(BLOCK):
                part[j] = weight(logits[first + j], largest, temperature)
            word = allowed[block]
            if word != ALL:
                for j in range(BLOCK):
                    taken = (word >> np.uint64(j)) & np.uint64(1)
                    part[j] = part[j] if taken != np.uint64(0) else 0.0
        else:
            for j in range(BLOCK):
                part[j] = 0.0
                if first + j < len(logits) and allows(allowed, first + j):
                    part[j] = weight(logits[first + j], largest, temperature)
        half = BLOCK // 2
        while half:
            for j in range(half):
                part[j] += part[half + j]
            half //= 2
        total += part[0]
    return total


@kernel
def share_of(logits, allowed, maxima, token):  # pragma: no cover - compiled
    """The probability f32 of a token among those that may be taken, at temperature 1: what a guess
    is judged by, and no choice."""
    largest = LOWEST
    for block in range(len(maxima)):
        largest = max(largest, maxima[block])
    zero, down = splat(np.float32(0.0)), splat(-largest)
    lanes, total = zero, np.float32(0.0)
    for block in range(len(maxima)):
        first = block * BLOCK
        if maxima[block] == LOWEST:
            continue
        if first + BLOCK <= len(logits):
            at = address(logits) + first * 4
            for c in range(0, BLOCK, LANES):
                v = exp(add(load_f32(at + c * 4), down))
                lanes = add(chosen(np.int64(allowed[block] >> np.uint64(c)), v, zero), lanes)
        else:
            for i in range(first, len(logits)):
                if allows(allowed, i):
                    total += exp(logits[i] - largest)
    return exp(logits[token] - largest) / (total + lane_sum(lanes))


@kernel
def at_least(logits, allowed, maxima, border, ids):  # pragma: no cover - compiled
    """The ids that may be taken with logits of `border` or more, ascending, to ids i32 (n,).

    Returns how many they are.
    """
    count = 0
    for block in range(len(maxima)):
        if maxima[block] < border or maxima[block] == LOWEST:
            continue
        first = block * BLOCK
        for i in range(first, min(first + BLOCK, len(logits))):
            if logits[i] >= border and allows(allowed, i):
                ids[count] = i
                count += 1
    return count


@kernel
def weigh(logits, ids, largest, temperature, weights):  # pragma: no cover - compiled
    """weights f64 (n,) of ids i32 (n,)."""
    for k in range(len(ids)):
        weights[k] = logits[ids[k]]
    for k in range(len(ids)):
        weights[k] = weight(weights[k], largest, temperature)


@inner
def _key(logit):  # pragma: no cover - compiled
    """An int64 in [0, 2**32) that orders as finite f32 do, with one zero."""
    bits = np.int64(float_bits(logit + np.float32(0.0)))
    return (bits if bits >= 0 else -1 - (bits & 0x7FFFFFFF)) + 0x80000000


@kernel
def heaviest(logits, ids, weights, target, members):  # pragma: no cover - compiled
    """Keeps the fewest ids with the largest logits that weigh `target` together, in their order.

    ids i32 (n,) ascending, weights f64 (n,): the kept come to stand first. members i32 (n,) is
    scratch. Returns how many are kept. The border between kept and not is found digit by digit of
    the logits' bits: each time the weight per digit is added up, from the largest down, for those
    that share the digits found so far. So the work is a few n, whatever the logits are.
    """
    n = len(ids)
    bins = np.empty(1 << DIGITS, np.float64)
    for k in range(n):
        members[k] = k
    count, above, border, shift = n, 0.0, 0, 33
    while shift:
        shift -= DIGITS
        bins[:] = 0.0
        for m in range(count):
            k = members[m]
            bins[(_key(logits[ids[k]]) >> shift) & (len(bins) - 1)] += weights[k]
        digit = len(bins) - 1
        while digit and above + bins[digit] < target:
            above += bins[digit]
            digit -= 1
        border = (border << DIGITS) | digit
        left = 0
        for m in range(count):
            k = members[m]
            if _key(logits[ids[k]]) >> shift == border:
                members[left] = k
                left += 1
        count = left
    last = n  # of those at the border, the last that is needed
    for m in range(count):
        above += weights[members[m]]
        if above >= target:
            last = members[m]
            break
    kept = 0
    for k in range(n):
        key = _key(logits[ids[k]])
        if key > border or (key == border and k <= last):
            ids[kept] = ids[k]
            weights[kept] = weights[k]
            kept += 1
    return kept
