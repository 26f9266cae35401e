"""The program: models, decoding, text, and the faces that people use.

    from diskmoe.engine import Model, Sampling

The names below are loaded when they are first asked for: importing this package does nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "diskmoe.engine":  # Numba's on-disk cache records this name
    raise ImportError("import diskmoe.engine, not engine: run 'pip install -e .' first")

if TYPE_CHECKING:
    from diskmoe.engine.api import Model as Model
    from diskmoe.engine.constraining import ThinkBudget as ThinkBudget
    from diskmoe.engine.conversation import Conversation as Conversation
    from diskmoe.engine.conversation import Turn as Turn
    from diskmoe.engine.errors import BadGrammar as BadGrammar
    from diskmoe.engine.errors import BadModel as BadModel
    from diskmoe.engine.errors import BadRequest as BadRequest
    from diskmoe.engine.errors import DeadEnd as DeadEnd
    from diskmoe.engine.errors import DiskMoeError as DiskMoeError
    from diskmoe.engine.errors import OutOfBudget as OutOfBudget
    from diskmoe.engine.generation import Run as Run
    from diskmoe.engine.options import Options as Options
    from diskmoe.engine.sampling import Sampling as Sampling
    from diskmoe.engine.stats import RunStats as RunStats
    from diskmoe.engine.text.side import Prompt as Prompt

_HOMES = {
    "Model": "api",
    "ThinkBudget": "constraining",
    "Conversation": "conversation",
    "Turn": "conversation",
    "BadGrammar": "errors",
    "BadModel": "errors",
    "BadRequest": "errors",
    "DeadEnd": "errors",
    "DiskMoeError": "errors",
    "OutOfBudget": "errors",
    "Run": "generation",
    "Options": "options",
    "Sampling": "sampling",
    "RunStats": "stats",
    "Prompt": "text.side",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
