"""Small text and JSON files of a model directory, read with a bound: they are from elsewhere."""

import json
from pathlib import Path
from typing import Any

from diskmoe.engine.errors import BadModel


def read_text(path: Path, limit_bytes: int) -> str | None:
    """The file as text; None when there is no such file; BadModel when it is too big or not UTF-8."""
    try:
        if path.exists() and not path.is_file():
            raise BadModel(f"{path}: not a regular file")  # a pipe would be waited for without end
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(raw) > limit_bytes:
        raise BadModel(f"{path}: bigger than {limit_bytes} bytes, the most that is read")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadModel(f"{path}: byte {error.start} is not UTF-8") from None


def read_json_object(path: Path, limit_bytes: int = 16 << 20) -> dict[str, Any] | None:
    """The file's JSON object; None when there is no such file; BadModel when it is no object."""
    text = read_text(path, limit_bytes)
    return None if text is None else parse_json_object(text, path)


def parse_json_object(text: str, where: Path) -> dict[str, Any]:
    """`text` as a JSON object; BadModel names `where` and the line that is wrong."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise BadModel(f"{where}: nested too deeply to be JSON of a model") from None
    except ValueError as error:
        raise BadModel(f"{where}: not JSON ({one_line(error)})") from None
    if not isinstance(value, dict):
        raise BadModel(f"{where}: holds a JSON {type(value).__name__}, not an object")
    return value


def one_line(value: object, limit: int = 200) -> str:
    """Foreign text fit for an error message: one line, printable, bounded."""
    line = " ".join(str(value)[: 4 * limit].split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."
