"""Make gguf_blocks.json with the gguf package (llama.cpp's own Python): the oracle of our decoders.

Run once, in an environment that has it: `pip install gguf && python make_gguf_blocks.py`.
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, quants

rng = np.random.default_rng(2024)
values = (rng.standard_normal((6, 32)) * np.float32([[1e-3], [1], [8], [0.02], [300], [0]])).astype(
    np.float32
)
content = {"made_with": f"gguf {version('gguf')}"}
for name in ("Q4_1", "Q8_0"):
    kind = GGMLQuantizationType[name]
    blocks = quants.quantize(values, kind)
    decoded = quants.dequantize(blocks, kind).astype("<f4")
    content[name] = {
        "blocks": [block.tobytes().hex() for block in blocks],
        "float32": [row.tobytes().hex() for row in decoded],
    }
path = Path(__file__).with_name("gguf_blocks.json")
path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
