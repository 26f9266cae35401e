"""Text to token ids and back to bytes, from a model directory's tokenizer.json, or tiktoken.model.

The ``tokenizers`` library does the encoding; decoding is our own lookup table, so that output can
be streamed byte by byte. The rule kept here: what the table says is proved at load, by encoding
probe strings and comparing the bytes. A tokenizer.json is foreign data and is checked before use.

    tokenizer = load_tokenizer(Path("model"), vocab_size=151936)
    ids = tokenizer.encode("Hello", special=True)
    tokenizer.decode_bytes(ids)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.text.files import one_line, parse_json_object, read_json_object, read_text
from diskmoe.engine.text.spelling import Kind, Speller, detect_kind, token_text
from diskmoe.engine.text.stops import collect_stop_ids
from diskmoe.engine.text.tiktoken_file import NAME as TIKTOKEN
from diskmoe.engine.text.tiktoken_file import tiktoken_tokenizer

if TYPE_CHECKING:
    from diskmoe.engine.text.template import ChatTemplate

TOKENIZER_LIMIT_BYTES = 128 << 20  # the largest in use (Gemma, Llama 4) are about 33 MB

_SLICE = 16_384  # characters
_DENSE = 8  # characters of a token, in a text that is worth being encoded at once
_SEAM = 64  # tokens more than in one piece that a slice may have

PROBES = (
    "Hello, world!",
    " leading space",
    "  two  spaces\n\n\tand a tab\r\n",
    "naïve café, Ωμέγα, Привет",
    "漢字とかな 한국어",
    "🙂👩‍💻 1234567890",
    "for i in range(10):\n    x[i] += 1  # {'a': \"b\"}",
)

# Without pad_token: nobody generates it, and some configurations name "!" or another plain word.
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and its table of bytes, both verified.

    `token_bytes` has one entry per row of the model's vocabulary: the bytes the token prints, or
    None for special tokens (they print nothing) and for rows that no token uses.
    """

    path: Path
    kind: Kind
    vocab_size: int  # rows of the model's embedding and head
    token_bytes: tuple[bytes | None, ...]  # (vocab_size,)
    special_text: Mapping[int, str]  # id of each special token -> how a template writes it
    surplus_ids: tuple[int, ...]  # rows without a token: mask them when sampling
    leading_space: bool  # SentencePiece's rule: encoding puts a space before the text
    prefix_ids: tuple[int, ...]  # what `special=True` puts before a text (BOS)
    suffix_ids: tuple[int, ...]
    backend: tokenizers.Tokenizer
    most: int | None = None  # tokens of a text, as far as it costs little to know

    @property
    def valid_count(self) -> int:
        """One more than the highest id that has a token."""
        surplus = set(self.surplus_ids)
        return max((i for i in range(self.vocab_size) if i not in surplus), default=-1) + 1

    @cached_property
    def fingerprint(self) -> str:
        """A word that vocabularies have in common when all their ids print the same bytes."""
        digest = hashlib.sha256()
        for token in self.token_bytes[: self.valid_count]:
            digest.update(b"-" if token is None else b"%d:%b" % (len(token), token))
        return digest.hexdigest()

    @property
    def valid_mask(self) -> np.ndarray:
        """bool (vocab_size,): True where a token may be sampled."""
        mask = np.ones(self.vocab_size, dtype=np.bool_)
        mask[list(self.surplus_ids)] = False
        return mask

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of `text`; BadRequest when it is not valid Unicode, or has far more tokens than
        `most`.

        Special tokens written out in the text are recognised either way. `special` adds what the
        model expects around raw text (BOS), but not a second time where the text has it already;
        a rendered chat template brings its own and is encoded without.
        """
        if self.most is not None:
            self._refuse_endless(text, self.most)
        ids = _encode(self.backend, text, self.path)
        if not special:
            return ids
        has_prefix = bool(self.prefix_ids) and tuple(ids[: len(self.prefix_ids)]) == self.prefix_ids
        return [*(() if has_prefix else self.prefix_ids), *ids, *self.suffix_ids]

    def _refuse_endless(self, text: str, most: int) -> None:
        """Counts slice by slice: the library takes 100 bytes and more for each character."""
        if len(text) <= _SLICE + _DENSE * most:
            return
        count = 0
        for begin in range(0, len(text), _SLICE):
            count += len(_encode(self.backend, text[begin : begin + _SLICE], self.path)) - _SEAM
            if count > most:
                raise BadRequest(
                    f"the prompt has {len(text)} characters, in the first {begin + _SLICE} of them "
                    f"more than {most} tokens, and CTX is {most}: shorten it or set a larger CTX"
                )

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that these tokens print, a leading space included."""
        return b"".join(self.token_bytes[i] or b"" for i in ids)

    def is_special(self, token_id: int) -> bool:
        """Whether the token steers the model and prints nothing."""
        return token_id in self.special_text

    def token_id(self, text: str) -> int | None:
        """The id of the token written exactly so, None when there is none."""
        return self.backend.token_to_id(text)

    def stop_ids(
        self,
        generation_config: Mapping[str, Any] | None,
        config: Mapping[str, Any] | None,
        tokenizer_config: Mapping[str, Any] | None,
        template: ChatTemplate | None = None,
    ) -> tuple[frozenset[int], dict[int, str]]:
        """The ids that end a text, and for each where it comes from; see `collect_stop_ids`."""
        more: dict[str, int | None] = {}
        eos_text = token_text((tokenizer_config or {}).get("eos_token"))
        if eos_text is not None:
            more["tokenizer_config eos_token"] = self.token_id(eos_text)
        if template is not None:
            more["chat template's end of turn"] = self._end_of_turn(template)
        return collect_stop_ids(self.vocab_size, generation_config, config, more)

    def _end_of_turn(self, template: ChatTemplate) -> int | None:
        """The special token that the template ends an answer with; not one that it writes within
        answers too (gpt-oss ends every message with <|end|>, and an answer is two)."""
        ids = self.encode((template.text_after_answer() or "").lstrip())
        if not ids or not self.is_special(ids[0]):
            return None
        within = set(self.encode(template.text_within_answer()))
        return next((i for i in ids if self.is_special(i) and i not in within), None)


def load_tokenizer(directory: Path, vocab_size: int) -> TextTokenizer | None:
    """The tokenizer of a model directory, None when it has no tokenizer.json, nor Kimi's
    tiktoken.model.

    Raises BadModel when the file is broken, has ids beyond the model's `vocab_size`, is of an
    unknown kind, or when its tokens do not spell the probe strings.
    """
    path = directory / "tokenizer.json"
    text = read_text(path, TOKENIZER_LIMIT_BYTES)
    config = read_json_object(directory / "tokenizer_config.json") or {}
    if text is not None:
        data = parse_json_object(text, path)
    else:
        path = directory / TIKTOKEN
        made = tiktoken_tokenizer(directory, config, vocab_size)
        if made is None:
            return None
        data, text = made, json.dumps(made)
    entries = _model_entries(data, path)
    added = _added_tokens(data, path)
    _check_ids(path, vocab_size, entries, added)
    backend = _build(text, path)
    del text
    for content, token in added.items():
        if backend.token_to_id(content) != token["id"]:
            raise BadModel(
                f"{path}: added token {one_line(repr(content), 60)} has id {token['id']}, the "
                f"vocabulary gives it {backend.token_to_id(content)}"
            )
    special_text = _special_tokens(backend, data, config, added)

    kind = detect_kind(data)
    if kind is None:
        raise BadModel(
            f"{path}: neither a byte-level nor a SentencePiece vocabulary, the kinds supported"
        )
    model = data["model"]
    speller = Speller(kind, entries, bool(model.get("byte_fallback")))
    token_bytes: list[bytes | None] = [None] * vocab_size
    used = np.zeros(vocab_size, dtype=np.bool_)
    for entry, token_id in entries.items():
        token_bytes[token_id] = speller.spell(entry)
        used[token_id] = True
    for content, token in added.items():
        token_bytes[token["id"]] = content.encode()  # literal text, never through the byte table
        used[token["id"]] = True
    for token_id in special_text:
        token_bytes[token_id] = None

    prefix, suffix = _surroundings(backend, config, path)
    tokenizer = TextTokenizer(
        path=path,
        kind=kind,
        vocab_size=vocab_size,
        token_bytes=tuple(token_bytes),
        special_text=special_text,
        surplus_ids=tuple(int(i) for i in np.flatnonzero(~used)),
        leading_space=_verify(path, backend, token_bytes, special_text, speller),
        prefix_ids=prefix,
        suffix_ids=suffix,
        backend=backend,
    )
    return tokenizer


def _encode(
    backend: tokenizers.Tokenizer, text: str, path: Path, special: bool = False
) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the text is not valid Unicode: a lone surrogate at character {error.start}"
        ) from None
    try:
        return backend.encode(text, add_special_tokens=special).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a Rust panic is no Exception
        raise BadModel(
            f"{path}: the tokenizers library cannot encode {one_line(repr(text), 40)} with it: "
            f"{one_line(error)}"
        ) from None


def _model_entries(data: dict[str, Any], path: Path) -> dict[str, int]:
    """{entry: id} of the model's own vocabulary; BadModel when it is not a vocabulary."""
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # Unigram: [[piece, score], ...]
        if not all(isinstance(row, list) and row and isinstance(row[0], str) for row in vocab):
            raise BadModel(f"{path}: model.vocab is a list, but not of [piece, score] pairs")
        return {row[0]: i for i, row in enumerate(vocab)}
    if not isinstance(vocab, dict):
        raise BadModel(f"{path}: has no model.vocab; a tokenizer.json of the tokenizers library?")
    for entry, token_id in vocab.items():
        if type(token_id) is not int or token_id < 0:
            raise BadModel(
                f"{path}: model.vocab gives {one_line(repr(entry), 60)} the id "
                f"{one_line(repr(token_id), 40)}"
            )
    return vocab


def _added_tokens(data: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """{content: added token} of the file, ids and texts checked."""
    tokens = data.get("added_tokens") or []
    if not isinstance(tokens, list):
        raise BadModel(f"{path}: added_tokens is not a list")
    added: dict[str, dict[str, Any]] = {}
    for place, token in enumerate(tokens):
        content = token_text(token) if isinstance(token, dict) else None
        token_id = token.get("id") if isinstance(token, dict) else None
        if content is None or type(token_id) is not int or token_id < 0:
            raise BadModel(f"{path}: added_tokens[{place}] has no content or no id")
        added[content] = token
    return added


def _check_ids(
    path: Path, vocab_size: int, entries: dict[str, int], added: dict[str, dict[str, Any]]
) -> None:
    owners = {token_id: entry for entry, token_id in entries.items()}
    if len(owners) != len(entries):
        raise BadModel(f"{path}: model.vocab has {len(entries)} entries but {len(owners)} ids")
    for content, token in added.items():
        if owners.setdefault(token["id"], content) != content:
            raise BadModel(
                f"{path}: id {token['id']} belongs to {one_line(repr(content), 60)} and to "
                f"{one_line(repr(owners[token['id']]), 60)}"
            )
    highest = max(owners, default=-1)
    if highest >= vocab_size:
        raise BadModel(
            f"{path}: has ids up to {highest} ({one_line(repr(owners[highest]), 60)}), the model "
            f"has {vocab_size} (vocab_size in config.json): they do not belong together"
        )


def _build(text: str, path: Path) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_str(text)
        # A file made for classification may cut or pad every text; a prompt must stay whole.
        backend.no_truncation()
        backend.no_padding()
        return backend
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a Rust panic is no Exception
        raise BadModel(f"{path}: the tokenizers library refuses it: {one_line(error)}") from None


def _special_tokens(
    backend: tokenizers.Tokenizer,
    data: dict[str, Any],
    config: dict[str, Any],
    added: dict[str, dict[str, Any]],
) -> dict[int, str]:
    """{id: text} of the tokens that print nothing: marked special, or named in the config."""
    special = {token["id"]: text for text, token in added.items() if token.get("special")}
    listed = config.get("additional_special_tokens")
    names = [config.get(name) for name in NAMED_TOKENS]
    names += listed if isinstance(listed, list) else []
    names.append(data["model"].get("unk_token"))
    for content in filter(None, map(token_text, names)):
        token_id = backend.token_to_id(content)
        if token_id is None or token_id in special:
            continue
        special[token_id] = content
        if content not in added:  # transformers adds such a token too, so that text can name it
            backend.add_special_tokens([tokenizers.AddedToken(content, normalized=False)])
    unk_id = data["model"].get("unk_id")  # Unigram names it by number
    if isinstance(unk_id, int) and (content := backend.id_to_token(unk_id)) is not None:
        special.setdefault(unk_id, content)
    return special


def _surroundings(
    backend: tokenizers.Tokenizer, config: dict[str, Any], path: Path
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(ids before, ids after) a raw text.

    An explicit add_bos_token wins over the file's post-processor, as in transformers 5: some
    models (DeepSeek-V3) ask for their BOS only there.
    """
    wanted = config.get("add_bos_token")
    bos = token_text(config.get("bos_token"))
    bos_id = None if bos is None else backend.token_to_id(bos)
    if wanted is True and bos_id is not None:
        return (bos_id,), ()
    if wanted is False:
        return (), ()
    plain = _encode(backend, "a", path)
    whole = _encode(backend, "a", path, special=True)
    for start in range(len(whole) - len(plain) + 1):
        if plain and whole[start : start + len(plain)] == plain:
            return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    return (), ()


def _verify(
    path: Path,
    backend: tokenizers.Tokenizer,
    token_bytes: list[bytes | None],
    special_text: Mapping[int, str],
    speller: Speller,
) -> bool:
    """Encode the probes and compare bytes; True when a space is put before the text."""
    leading_space = False
    for probe in PROBES:
        if not speller.can_spell(probe):
            continue  # such text is lost by the model's vocabulary, not by the table
        ids = _encode(backend, probe, path)
        if any(i in special_text for i in ids):
            continue
        got = b"".join(token_bytes[i] or b"" for i in ids)
        if got == b" " + probe.encode():
            leading_space = True
        elif got != probe.encode():
            raise BadModel(
                f"{path}: its tokens spell {one_line(repr(got), 80)} for the probe "
                f"{probe!r}; this kind of tokenizer is not supported"
            )
    return leading_space
