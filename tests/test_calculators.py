"""Every percentage and long integer in docs/calculators.md, recomputed from configurations.

Two formulas stand side by side: the calculator's, as its source has it, and the exact one. A table
row is checked against its own claims, in order; the text against all of them and a few more.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from minifer.observe.devices import find_device

TEXT = (Path(__file__).parent.parent / "docs" / "calculators.md").read_text(encoding="utf-8")
PERCENT = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?= %)")


class Model(NamedTuple):
    D: int
    L: int
    H: int
    K: int
    E: int
    F: int
    V: int
    tied: bool = False

    @property
    def head(self):
        return self.V * self.D

    @property
    def P(self):
        matrices = 2 * self.D * self.H * self.E + 2 * self.D * self.K * self.E + 3 * self.D * self.F
        return self.L * matrices + self.head

    @property
    def norms(self):
        return (2 * self.L + 1) * self.D

    @property
    def N(self):
        return self.P + self.norms + (0 if self.tied else self.head)

    @property
    def kv(self):
        return 2 * self.L * self.K * self.E * 2

    @property
    def per_pair(self):
        return 4 * self.H * self.E * self.L


LLAMA_2_7B = Model(4096, 32, 32, 32, 128, 11008, 32000)
LLAMA_2_70B = Model(8192, 80, 64, 8, 128, 28672, 32000)
LLAMA_3_8B = Model(4096, 32, 32, 8, 128, 14336, 128256)
SMOLLM2 = Model(576, 30, 9, 3, 64, 1536, 49152, tied=True)
NEMO = Model(5120, 40, 32, 8, 128, 14336, 131072)
REFERENCES = {
    "Llama-2-7B": LLAMA_2_7B,
    "Llama-2-70B": LLAMA_2_70B,
    "Llama-3-8B": LLAMA_3_8B,
    "SmolLM2-135M": SMOLLM2,
}


def off(theirs, exact):
    return (theirs / exact - 1) * 100


def head_with_one_operation(m):
    return off(2 * (m.P - m.head) + m.head, 2 * m.P)


def cookbook_kv(m):
    return 2 * m.D * m.L


def llm_analysis_parameters(m):
    attention = 2 * m.D**2 + 2 * m.D * (m.D * m.K / m.H)
    return m.L * (attention + 2 * m.D * 4 * m.D + 2 * m.D) + m.head + m.D


def triangle(T):
    return T * (T + 1) // 2


def forward(m, T, pairs):
    return 2 * T * m.P + m.per_pair * pairs


def transformers_training(m, T):
    return 6 * T * (m.N - m.head)  # the embedding, which is the head where they are tied


T, B = 4096, 32
FUSED_THEIRS = 2 * 2048 * 2048 * 32 * 2  # twice S per head and row, 16 bits, one layer
FUSED_EXACT = 2048 * 128 * 32 * 2
NO_ATTENTION = off(forward(LLAMA_2_7B, T, 0), forward(LLAMA_2_7B, T, triangle(T)))

# By row of the table, in the order of its cells.
CLAIMS = {
    1: [head_with_one_operation(SMOLLM2)],
    2: [off(2 * (SMOLLM2.P - SMOLLM2.head) + SMOLLM2.head, 2 * SMOLLM2.P)],
    3: [off(NEMO.D // NEMO.H, NEMO.E)],
    4: [off(FUSED_THEIRS, FUSED_EXACT)],
    5: [off(1, B)],
    6: [off(SMOLLM2.N - SMOLLM2.norms, SMOLLM2.N)],
    7: [off(cookbook_kv(m), m.kv) for m in (LLAMA_2_7B, LLAMA_2_70B)],
    8: [off(LLAMA_2_70B.H, LLAMA_2_70B.K)],
    9: [off(2, 4)],
    10: [off(2 * LLAMA_3_8B.P + 2 * LLAMA_3_8B.head, 2 * LLAMA_3_8B.P)],
    11: [off(2 * LLAMA_3_8B.N, 2 * LLAMA_3_8B.P)],
    12: [off(transformers_training(SMOLLM2, 1), 6 * SMOLLM2.P)],
    13: [off(SMOLLM2.N + SMOLLM2.head, SMOLLM2.N)],
    14: [off(2 * (LLAMA_3_8B.P - LLAMA_3_8B.head) + 6 * LLAMA_3_8B.head, 2 * LLAMA_3_8B.P)],
    15: [off(llm_analysis_parameters(LLAMA_2_70B), LLAMA_2_70B.N)],
    16: [off(transformers_training(LLAMA_2_7B, T), 3 * forward(LLAMA_2_7B, T, triangle(T)))],
    17: [
        off(T * T, triangle(T)),
        off(forward(LLAMA_2_7B, T, T * T), forward(LLAMA_2_7B, T, triangle(T))),
    ],
    18: [off(1, 2)],
    19: [NO_ATTENTION],
    20: [off(4, 3)],
    21: [off(2 * LLAMA_2_7B.N / 2**30, 2 * LLAMA_2_7B.N / 1e9)],
    22: [off(1979e12 / 3072e9, find_device("H100-SXM").ridge("float16"))],
}
# Stated in the sections alone.
BESIDES = [
    off(  # 5, the whole step
        2 * SMOLLM2.P + 2 * (SMOLLM2.D + SMOLLM2.V),
        2 * SMOLLM2.P + B * 2 * (SMOLLM2.D + SMOLLM2.V),
    ),
    head_with_one_operation(LLAMA_2_70B),
    off(LLAMA_2_7B.D // LLAMA_2_7B.H, LLAMA_2_7B.E),
    off(0.5, 2),  # 4-bit KV for 16 bits
    off(transformers_training(LLAMA_2_7B, 1), 6 * LLAMA_2_7B.P),
    off(2 * LLAMA_2_7B.P, 2 * LLAMA_2_7B.P + LLAMA_2_7B.per_pair * T),
    off(LLAMA_3_8B.N - LLAMA_3_8B.head, LLAMA_3_8B.N),
    off(llm_analysis_parameters(LLAMA_2_7B), LLAMA_2_7B.N),
    off(T * T / 2, triangle(T)),
    off(T * LLAMA_2_7B.P, forward(LLAMA_2_7B, T, triangle(T))),
]
LONG_INTEGERS = (
    {n for m in REFERENCES.values() for n in (m.N, m.P, m.kv)}
    | {FUSED_THEIRS, FUSED_EXACT, 2 * LLAMA_2_7B.N}
    | {cookbook_kv(LLAMA_2_7B), cookbook_kv(LLAMA_2_70B)}
)


def same(printed, value):
    """Equal when rounded to as many decimals as the page prints; 0 is exact."""
    if not printed.strip("+-0.,"):
        return value == 0
    decimals = len(printed.partition(".")[2])
    return abs(float(printed.replace(",", "")) - value) <= 0.5 * 10**-decimals + 1e-9


def table_rows():
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", TEXT, re.MULTILINE)
    return {int(number): [cell.strip() for cell in cells.split("|")] for number, cells in rows}


def test_the_table_and_the_claims_name_the_same_rows():
    assert list(table_rows()) == list(CLAIMS)


@pytest.mark.parametrize("row", CLAIMS)
def test_a_row_prints_what_the_two_formulas_give(row):
    printed = PERCENT.findall(table_rows()[row][2])
    assert len(printed) == len(CLAIMS[row])
    assert all(same(text, value) for text, value in zip(printed, CLAIMS[row], strict=True))


def test_every_row_says_what_it_is_and_has_a_section():
    sections = " ".join(re.findall(r"^## ([\d, ]+)\.", TEXT, re.MULTILINE))
    assert sorted(int(n) for n in re.findall(r"\d+", sections)) == list(CLAIMS)
    for cells in table_rows().values():
        assert cells[3].startswith(("mistake", "convention", "gap", "omission"))


def test_no_percentage_on_the_page_is_without_a_computation():
    values = [value for claim in CLAIMS.values() for value in claim] + BESIDES
    printed = PERCENT.findall(TEXT)
    assert [p for p in printed if not any(same(p, value) for value in values)] == []
    assert [v for v in values if not any(same(p, v) for p in printed)] == []


def test_no_long_integer_on_the_page_is_without_a_computation():
    printed = {int(n.replace(",", "")) for n in re.findall(r"\d{1,3}(?:,\d{3})+", TEXT)}
    assert {n for n in printed if n >= 10_000} == LONG_INTEGERS


@pytest.mark.parametrize("name", REFERENCES)
def test_the_reference_table(name):
    model = REFERENCES[name]
    tied = "yes" if model.tied else "no"
    assert f"| {name} | {model.N:,} | {model.P:,} | {model.kv:,} | {tied} |" in TEXT


def test_other_figures_of_the_sections():
    squares = 2 * 128 * LLAMA_2_7B.P + LLAMA_2_7B.per_pair * 128**2
    assert f"{squares / 1e9:.2f}" == "1700.00" and "1700.00" in TEXT
    size = 2 * LLAMA_2_7B.N
    assert f"{size / 1e9:.2f} GB or {size / 2**30:.2f} GiB" in TEXT
    assert f"ridge {1979e12 / 3072e9:.0f}." in TEXT
    assert f"{find_device('h100').ridge('bfloat16'):.0f} (" in TEXT
    assert NEMO.D // NEMO.H == 160
    assert LLAMA_2_70B.F / LLAMA_2_70B.D == 3.5
    assert 0.2 < SMOLLM2.head / SMOLLM2.P < 0.22  # "a fifth"
    plain = 24 * 4096**2  # 2 x (4 D^2 + 8 D^2), one layer of a plain model
    assert 4 * 4096 * 512 / 2 / plain == 512 / (12 * 4096)  # S / 12D


def test_the_page_stays_short():
    assert len(TEXT.splitlines()) < 200
