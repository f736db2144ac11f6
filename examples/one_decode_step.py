"""Stop right before one decode step of the real model: `s` steps in, `n` over, `u` up, `c` ends.

    python examples/one_decode_step.py ["a prompt"]

Checks and layout come first; `b minifer.model.transformer` and `c` skip them.
"""

import sys

import minifer

prompt = sys.argv[1] if len(sys.argv) > 1 else "The capital of France is"

model = minifer.load("default", kernels="reference")
cache = model.new_cache(max_length=64)
prompt_ids = model.tokenizer.encode(prompt)

logits = model.forward(prompt_ids, cache, last_only=True)  # prefill: the whole prompt at once
token_id = int(logits[-1].argmax())

breakpoint()  # next is one decode step: `s` here goes through every layer of it
logits = model.forward([token_id], cache, last_only=True)  # decode: one token, all the weights

following = int(logits[-1].argmax())
print(prompt + model.tokenizer.decode([token_id, following]))
