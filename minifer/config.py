"""The model's configuration: every switch in one place, frozen, named as in config.json."""

from dataclasses import dataclass
from typing import Any

from .errors import ConfigError


@dataclass(frozen=True)
class RopeConfig:
    """How positions become angles (rope.py). `kind` is default, linear or llama3."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """What a family reads out of config.json. The letters are those of the dimension key."""

    family: str
    vocab_size: int  # V
    hidden_size: int  # D
    intermediate_size: int  # F
    num_hidden_layers: int  # L
    num_attention_heads: int  # H
    num_key_value_heads: int  # K
    head_dim: int  # E
    max_position_embeddings: int  # the context: tokens of prompt and output together
    rms_norm_eps: float
    rope: RopeConfig
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def kv_elements_per_token(self) -> int:
        """Elements a token adds to the KV cache: a key and a value per layer and KV head."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim


class Fields:
    """Checked access to the keys of a config.json. null counts as absent, as in transformers."""

    def __init__(self, data: dict[str, Any], source: str) -> None:
        self.data, self.source = data, source

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def refuse(self, key: str, allowed: str) -> ConfigError:
        """The error for a value that is there and is not understood."""
        found = f"{self.data.get(key)!r:.80}"
        return ConfigError(f"{self.source}: {key} is {found}, expected {allowed}")

    def integer(self, key: str, default: int | None = None, high: int = 2**31 - 1) -> int:
        """A whole number from 1; bounded above, since sizes are multiplied."""
        value = self._value(key, default)
        if type(value) is not int or not 1 <= value <= high:
            raise self.refuse(key, f"a whole number from 1 to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise self.refuse(key, "a number above zero")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise self.refuse(key, "true or false")
        return value

    def section(self, key: str) -> "Fields | None":
        """A nested object, or None when it is absent or empty."""
        value = self.data.get(key)
        if not value and not isinstance(value, (int, str)):
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, "an object {...} or null")
        return Fields(value, f"{self.source}: {key}")

    def ids(self, key: str, vocab_size: int) -> frozenset[int]:
        """A token id or a list of them."""
        value = self.data.get(key)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if any(type(token_id) is not int or not 0 <= token_id < vocab_size for token_id in listed):
            raise self.refuse(key, f"a token id from 0 to {vocab_size - 1}, or a list of them")
        return frozenset(listed)

    def _value(self, key: str, default: Any) -> Any:
        value = self.data.get(key)
        if value is None and default is None:
            raise ConfigError(f"{self.source}: the key {key} is missing")
        return default if value is None else value
