"""Every way in which tokens may part some bytes."""

from collections.abc import Iterator


def splits(data: bytes) -> Iterator[list[bytes]]:
    for cuts in range(1 << (len(data) - 1)):
        parts, begin = [], 0
        for at in range(1, len(data) + 1):
            if at == len(data) or cuts >> (at - 1) & 1:
                parts.append(data[begin:at])
                begin = at
        yield parts
