"""The number formats inside GGUF tensors, as formulas; and rounding to bfloat16.

Block layouts: github.com/ggml-org/ggml, src/ggml-common.h. Scales are little-endian float16; all
arithmetic is float32, so the results equal llama.cpp's own dequantisation bit by bit.
"""

from collections.abc import Callable

import numpy as np

# Types of tensors: number in the file -> name, elements per block, bytes per block.
TENSOR_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip

BLOCK = 32  # elements that share a scale

Q4_1 = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("nibbles", "u1", BLOCK // 2)])  # 20 bytes
Q8_0 = np.dtype([("scale", "<f2"), ("quants", "i1", BLOCK)])  # 34 bytes


def decode_f32(data: memoryview) -> np.ndarray:
    """float32 as it is: (bytes) -> (elements,), copied."""
    return np.frombuffer(data, "<f4").astype(np.float32)


def decode_f16(data: memoryview) -> np.ndarray:
    """float16, widened: (bytes) -> (elements,) float32."""
    return np.frombuffer(data, "<f2").astype(np.float32)


def decode_q4_1(data: memoryview) -> np.ndarray:
    """Q4_1: x[i] = quant[i] * scale + minimum with quant in 0..15; (bytes) -> (elements,) float32.

    A block of 32 elements is 20 bytes: scale, minimum, then 16 bytes of which byte j holds element
    j in its low nibble and element j + 16 in its high one.
    """
    blocks = np.frombuffer(data, Q4_1)
    values = np.empty((len(blocks), 2, BLOCK // 2), np.float32)  # (blocks, nibble, byte)
    values[:, 0] = blocks["nibbles"] & 0x0F
    values[:, 1] = blocks["nibbles"] >> 4
    values *= blocks["scale"].astype(np.float32)[:, None, None]
    values += blocks["minimum"].astype(np.float32)[:, None, None]
    return values.reshape(-1)


def decode_q8_0(data: memoryview) -> np.ndarray:
    """Q8_0: x[i] = quant[i] * scale with quant in -128..127; (bytes) -> (elements,) float32.

    A block of 32 elements is 34 bytes: scale, then 32 signed bytes.
    """
    blocks = np.frombuffer(data, Q8_0)
    values = blocks["quants"].astype(np.float32)  # (blocks, 32)
    values *= blocks["scale"].astype(np.float32)[:, None]
    return values.reshape(-1)


DECODERS: dict[str, Callable[[memoryview], np.ndarray]] = {
    "F32": decode_f32,
    "F16": decode_f16,
    "Q4_1": decode_q4_1,
    "Q8_0": decode_q8_0,
}


def to_bfloat16_words(values: np.ndarray) -> np.ndarray:
    """float32 (any shape) -> uint16 words of bfloat16, rounded to nearest, ties to even.

    bfloat16 is the upper half of float32. Adding 0x7FFF, and one more where the kept half is odd,
    carries exactly when the dropped half is above one half, or is one half and must go to even.
    """
    if values.dtype != np.float32:
        raise TypeError(f"wanted a float32 array, got {values.dtype}")
    words = np.empty(values.shape, np.uint16)
    source, target = np.ascontiguousarray(values).reshape(-1), words.reshape(-1)
    for start in range(0, source.size, 1 << 16):  # pieces stay in the cache of the processor
        part = source[start : start + (1 << 16)]
        bits = part.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # The carry could turn a NaN into an infinity: keep its upper half, with the quiet bit set.
        target[start : start + part.size] = np.where(np.isnan(part), (bits >> 16) | 0x0040, rounded)
    return words


def widen_bfloat16(words: np.ndarray) -> np.ndarray:
    """uint16 words of bfloat16 (any shape) -> the same values as float32, exactly."""
    bits = words.astype(np.uint32)  # before the shift: uint16 << 16 would be 0
    bits <<= 16
    return bits.view(np.float32)
