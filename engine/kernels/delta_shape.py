"""The sizes of layers with a gated delta rule, and what of it must be kept."""

from dataclasses import dataclass

LANES = 16  # columns of a state that are worked on at a time


@dataclass(frozen=True)
class DeltaShape:
    """Sizes count numbers. A key head serves ``value_heads / key_heads`` value heads, which follow
    one another."""

    key_heads: int
    value_heads: int
    key_dim: int  # of a head's queries and keys, a multiple of 16
    value_dim: int  # of a head's values, a multiple of 16
    taps: int  # rows that the convolution sees, its own among them

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def heads(self) -> int:
        """Of queries, keys and values."""
        return 2 * self.key_heads + self.value_heads

    @property
    def raw_width(self) -> int:
        """Of a row's raw inputs: the channels, then b and a of the value heads."""
        return self.channels + 2 * self.value_heads

    @property
    def state_size(self) -> int:
        """Of a layer: tiles of 16 columns, (value heads, value dim / 16, key dim, 16)."""
        return self.value_width * self.key_dim
