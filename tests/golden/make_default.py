"""Make default_model.json: what transformers says of the default model, as the tests compare it.

Run once, in an environment of its own; the file is committed and tests need no torch:

    pip install torch transformers && python make_default.py FOLDER

FOLDER is the float32 folder of the default model, as `python -m minifer fetch` writes it.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

GREEDY, TOP = 24, 20
SAMPLED_IDS = (0, 1, 2, 30, 198, 260, 504, 3575, 12345, 28000, 49151)

LONG = " ".join(
    f"{place}. The {color} {thing} costs {3 * place + 1} euros and weighs {place / 8} kg."
    for place, (color, thing) in enumerate(
        (color, thing)
        for thing in ("lamp", "table", "kettle", "bicycle")
        for color in ("red", "green", "grey")
    )
)


def said(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


# Text is a raw prompt; a list is a conversation, rendered by the model's own template.
PROMPTS = {
    "capital": said(("user", "What is the capital of France?")),
    "raw": "Once upon a time, in a small village",
    "raw_code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "system": said(
        ("system", "You answer in one short sentence."), ("user", "Why is the sky blue?")
    ),
    "turns": said(
        ("user", "My name is Ada."),
        ("assistant", "Hello Ada! How can I help you today?"),
        ("user", "What is my name?"),
    ),
    "unicode": said(
        ("user", "Übersetze: „naïve café“, 你好，世界, Привет 👩‍👩‍👧 e\u0301 \u200b\u00a0½ مرحبا")
    ),
    "code": said(
        ("user", "Fix this:\n\n```python\nfor i in range(10)\n\tprint( i**2 )  # 1,234\n```\n"),
    ),
    "long": said(("user", f"Which of these is the cheapest?\n\n{LONG}")),
    "no_generation_prompt": said(("user", "Hi"), ("assistant", "Hello")),
}
SCORED = {
    "english": "The quick brown fox jumps over the lazy dog. It was the best of times, it was the "
    "worst of times, it was the age of wisdom, it was the age of foolishness.",
    "mixed": "E = mc², so 1 kg is about 9×10¹⁶ J.\n\nLe cœur a ses raisons que la raison ne "
    "connaît point; 心 … \t{'a': [1, 2.50, None]}",
}


def exact(values):
    """float32 -> the shortest decimals that read back as the same float32."""
    return [float(str(np.float32(value))) for value in values]


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@torch.no_grad()
def greedy(model, ids, eos):
    """Tokens of the highest logit through the reference's own cache, and their margins."""
    tokens, margins, past, new = [], [], None, ids
    while len(tokens) < GREEDY:
        found = model(torch.tensor([new]), past_key_values=past, use_cache=True)
        past, row = found.past_key_values, found.logits[0, -1].numpy()
        second, first = np.sort(row)[-2:]
        tokens.append(int(row.argmax()))
        margins.append(first - second)
        if tokens[-1] == eos:
            break
        new = tokens[-1:]
    return tokens, exact(margins)


def prompt_case(model, tokenizer, name, prompt):
    case = {"prompt": prompt}
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    else:
        case["add_generation_prompt"] = add = name != "no_generation_prompt"
        case["rendered"] = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=add, tokenize=False
        )
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=add, return_dict=False)
    logits = logits_of(model, ids)
    last = logits[-1]
    best = np.argsort(-last, kind="stable")[:TOP]
    case["ids"] = ids
    case["max_logit"] = exact([np.abs(logits).max()])[0]
    case["top"] = [best.tolist(), exact(last[best])]
    rows = sorted({0, 1, len(ids) // 3, len(ids) // 2, len(ids) - 2, len(ids) - 1})
    case["rows"] = {row: exact(logits[row, list(SAMPLED_IDS)]) for row in rows}
    case["greedy"], case["margins"] = greedy(model, ids, model.config.eos_token_id)
    print(f"{name}: {len(ids)} tokens, smallest margin {min(case['margins'])}:", end=" ")
    print(repr(tokenizer.decode(case["greedy"])))
    return case


def score_case(model, tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    logits = torch.tensor(logits_of(model, ids)).double()
    logprobs = torch.log_softmax(logits, dim=-1)[:-1]
    found = logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return {"text": text, "ids": ids, "logprobs": [round(value, 7) for value in found.tolist()]}


def main(folder):
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    content = {
        "made_with": f"transformers {version('transformers')}, torch {version('torch')}",
        "sampled_ids": SAMPLED_IDS,
        "prompts": {n: prompt_case(model, tokenizer, n, p) for n, p in PROMPTS.items()},
        "scored": {n: score_case(model, tokenizer, text) for n, text in SCORED.items()},
    }
    path = Path(__file__).with_name("default_model.json")
    path.write_text(json.dumps(content, ensure_ascii=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
