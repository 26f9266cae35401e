"""What the names that GGUF has for pre-tokenizers (``tokenizer.ggml.pre``) mean.

GGUF names the pre-tokenizer instead of describing it. A row says how the tokenizers of that name on
the hub cut a text before merges apply: patterns, one after another, each isolating what it matches
in what the one before left whole. Names without a row are refused: a text cut otherwise is other
tokens, without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HAN = r"&&[^\p{Han}]]"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_MARKS}|{_SPACES}"
QWEN35 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
GPT4O = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _SPACES,
    )
)
KIMI = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER[:-1]}{_HAN}*{_LOWER[:-1]}{_HAN}+{_ENDINGS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER[:-1]}{_HAN}+{_LOWER[:-1]}{_HAN}*{_ENDINGS}?",
        r"\p{N}{1,3}",
        _MARKS,
        _SPACES,
    )
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + f"|{_SPACES}",
)
# the letters that have cases, of a Unicode of that time: no shorter description has the same
_CASED = (
    "A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK,
    r"\p{N}+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
# where a file is silent, llama.cpp cuts so
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


@dataclass(frozen=True)
class PreTokenizer:
    """How texts are cut. `whole`: a piece that is a token is one, whatever the merges say."""

    patterns: tuple[str, ...]
    digits: bool = False  # each digit is cut off first
    whole: bool = False
    composed: bool = False  # texts are in Unicode's form NFC first
    bos: bool = False  # BOS is put before a text where the file does not say

    def described(self) -> dict[str, Any]:
        """As tokenizer.json has it."""
        if self.patterns == (GPT2,):  # what the step to bytes does by itself
            steps: list[dict[str, Any]] = [byte_level(True)]
        else:
            steps = [*map(_split, self.patterns), byte_level(False)]
        if self.digits:
            steps.insert(0, {"type": "Digits", "individual_digits": True})
        return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def byte_level(cuts: bool) -> dict[str, Any]:
    """The step that writes a text's bytes as characters; `cuts`: it cuts as GPT-2's did, too."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": cuts,
    }


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


_LLAMA3 = PreTokenizer((LLAMA3,), whole=True, bos=True)
_QWEN2 = PreTokenizer((QWEN2,), composed=True)
_DIGITS_APART = PreTokenizer((GPT2,), digits=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": PreTokenizer(DEFAULT),
        "gpt-2": PreTokenizer((GPT2,)),
        "olmo": PreTokenizer((GPT2,)),
        "smollm": _DIGITS_APART,
        "starcoder": _DIGITS_APART,
        "refact": _DIGITS_APART,  # Granite's too
        "llama-bpe": _LLAMA3,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "dbrx": PreTokenizer((LLAMA3,)),
        "qwen2": _QWEN2,
        "deepseek-r1-qwen": _QWEN2,
        "qwen35": PreTokenizer((QWEN35,), composed=True),
        "chatglm-bpe": PreTokenizer((LLAMA3,)),
        "glm4": PreTokenizer((LLAMA3,), whole=True),
        "glm5": PreTokenizer((LLAMA3,), whole=True),
        "gpt-4o": PreTokenizer((GPT4O,)),
        "minimax-m2": PreTokenizer((GPT4O,)),
        "deepseek-llm": PreTokenizer(DEEPSEEK),
        "deepseek-coder": PreTokenizer(DEEPSEEK_CODER),
        "deepseek-v3": PreTokenizer(DEEPSEEK3),
        "kimi-k2": PreTokenizer((KIMI,), whole=True),
    }
)
