"""Make templates.json: chat templates as transformers renders them, character by character.

Run once, in an environment of its own; the file is committed and tests need no torch:

    pip install transformers && python make_templates.py

The templates are in template_sources.py: in the style of real ones, written for these tests.
"""

import json
from importlib.metadata import version
from pathlib import Path

from template_sources import CHATS, SPECIAL_TOKENS, TEMPLATES
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast


def render(tokenizer, source, messages, add):
    """-> the text, or None and the reason where the template refuses or fails."""
    try:
        text = tokenizer.apply_chat_template(
            messages, chat_template=source, add_generation_prompt=add, tokenize=False
        )
    except Exception as problem:
        return {"refused": str(problem)}
    return {"text": text}


def main():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, unk_token="x")), **SPECIAL_TOKENS
    )
    cases = [
        {"template": name, "chat": chat, "add": add, **render(tokenizer, source, messages, add)}
        for name, source in TEMPLATES.items()
        for chat, messages in CHATS.items()
        for add in (True, False)
    ]
    content = {"made_with": f"transformers {version('transformers')}", "cases": cases}
    path = Path(__file__).with_name("templates.json")
    path.write_text(json.dumps(content, indent=0, ensure_ascii=True) + "\n", encoding="utf-8")
    refused = [case for case in cases if "refused" in case]
    print(len(cases), "cases,", len(refused), "refused")
    for case in refused:
        print(case["template"], case["chat"], case["refused"][:90])


if __name__ == "__main__":
    main()
