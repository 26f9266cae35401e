"""What a checkpoint's tensors are called: models inside others put a prefix before their names.

The rule of this file: whatever the prefix, the rest of the program sees ``model.layers.0...``,
``model.embed_tokens.weight``, ``model.norm.weight`` and ``lm_head.weight``; names that are of
something else (a picture tower, an MTP head) stay as they are.
"""

import re
from collections.abc import Iterable

from diskmoe.experts.errors import BadModel
from diskmoe.experts.safetensors_io import shown

PREFIX = "model."
_OTHERS = ("model.language_model.", "language_model.model.", "")
_PARTS = ("layers.", "embed_tokens.", "norm.")
_HEAD = "lm_head."
_LAYER = re.compile(r"\blayers\.(\d+)\.")


def canonical_names(names: Iterable[str], where: object) -> dict[str, str]:
    """{name that the program uses: name in the files}, in the order of the files.

    `where`: what a message calls them. BadModel when two tensors would get one name.
    """
    names = list(names)
    prefix = _prefix_of(set(names))
    found: dict[str, str] = {}
    for name in names:
        renamed = _renamed(name, prefix)
        if renamed in found:
            raise BadModel(
                f"{where}: tensors {shown(found[renamed])} and {shown(name)} are the same part of "
                "the model: fetch it again"
            )
        found[renamed] = name
    return found


def _prefix_of(names: set[str]) -> str:
    for prefix in (PREFIX, *_OTHERS):
        if prefix + "norm.weight" in names:
            return prefix
    return PREFIX


def _renamed(name: str, prefix: str) -> str:
    if prefix != PREFIX:
        rest = name[len(prefix) :]
        if name.startswith(prefix) and rest.startswith(_PARTS):
            return PREFIX + rest
        outer = prefix.removesuffix(PREFIX)
        if outer and name.startswith(outer + _HEAD):
            return name[len(outer) :]
    return name


def layer_of(name: str) -> str:
    """ " of layer N" for messages, of a tensor that is of one."""
    match = _LAYER.search(name)
    return f" of layer {match[1]}" if match else ""
