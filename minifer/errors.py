"""Every error a user can cause, by kind: what, the value found, what is allowed, what to do."""


class MiniferError(ValueError):
    """The parent of them all: catch this one to catch any mistake in model, data or options."""


class CheckpointError(MiniferError):
    """A weight file, its index or a tensor in it is malformed, missing or of another shape."""


class ConfigError(MiniferError):
    """config.json is malformed, of an unknown family, or asks for arithmetic that is not built."""


class TokenizerError(MiniferError):
    """tokenizer.json is malformed or a text cannot be encoded."""


class TemplateError(MiniferError):
    """There is no chat template, or it refuses the messages."""


class ContextError(MiniferError):
    """Token ids out of range, or more of them than the context or a cache holds."""


class DeviceError(MiniferError):
    """A device or a set of kernels that is not here."""


class SamplingError(MiniferError):
    """A sampling option out of range, or logits nothing can be drawn from."""


class OpError(MiniferError):
    """A hook or a swap names no op, or a swapped op answers with another shape."""


class FetchError(MiniferError):
    """A model could not be fetched, checked or written."""


class MiniferWarning(UserWarning):
    """Something a person should see once; nothing is wrong with the result."""
