"""What is said of a config.json that cannot be."""

import pytest

from diskmoe.engine.model.config import read_config
from diskmoe.experts.errors import BadModel


def complaint(raw: object) -> str:
    with pytest.raises(BadModel) as caught:
        read_config(raw, "some/config.json")
    message = str(caught.value)
    assert message.startswith("some/config.json: ") and "\n" not in message
    assert len(message) < 350
    return message
