"""Model families: config.json keys and tensor names -> ModelConfig and canonical names. No math."""

from typing import Any

from ..errors import ConfigError
from . import llama

# model_type in config.json -> the module that reads it.
FAMILIES = {"llama": llama}


def family_of(data: dict[str, Any], source: str) -> Any:
    """The module for a config.json. Raises ConfigError with the list of what is known."""
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(
            f"{source}: model_type is {kind!r:.80}; this version knows "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind]
