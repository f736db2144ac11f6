"""Characters younger than the Unicode tables that tokenizers are defined by.

A tokenizer is trained with one version of Unicode, and its ids change if `\\p{L}` starts to match
more. The reference, the `tokenizers` library (0.21 to 0.23), has three: Unicode 16 in its regular
expressions (Oniguruma), 17 in `char.is_numeric` (Rust), and about 10 in its normalisers. Python and
the `regex` module bring tables of their own, which differ from release to release. So the
characters on which they differ are listed here, as ranges of hexadecimal code points, up to
Unicode 18; tests/test_tokenizer_unicode.py compares every code point with the library.
"""

from functools import cache

# Assigned after Unicode 16. A gap between two of them is skipped where it is unassigned as well.
AFTER_16 = """
558 58B-58C 5C8-5C9 88F B53-B54 C5C CDC 1ACF-1AF0 208F 209D-209F 20C1-20C4 2B96 2E60-2E63 A7CE-A7CF
A7D2 A7D4 A7DD-A7F1 AB6C-AB6D FBC3-FBD2 FD90-FD91 FDC8-FDCE 107BB-107BF 10940-10959 10EC5-10EFB
11B0A-11B67 11DB0-11DF1 1246F 12475-1247F 12550-12686 16EA0-16ED3 16FF2-16FF6 187F8-187FF
18CD6-18CDA 18D09-191D2 1B123-1B128 1B168 1CCFA-1CCFC 1CEBA-1CEFD 1D127-1D128 1D1EB-1D1FF
1D250-1D281 1D6A6 1DB00-1DB1C 1DF1F-1DF24 1DF2B-1DFFF 1E6C0-1E6FF 1F1AE 1F6D8-1F6D9 1F777-1F77A
1F7DA-1F7DB 1F7F1-1F7FF 1F8D0-1F8D8 1FA54-1FA57 1FA8A-1FA8E 1FAC8-1FACD 1FADD 1FAEA-1FAEF
1FAF9-1FAFA 1FBFA 2B73A-2B73F 2B81E 2CEA2-2CEAD 323B0-3FC3F
"""

# Numeric in Rust (Unicode 17) but not yet in 16; and numeric from 18 on, so not yet in Rust.
NUMERIC_17 = "11DE0-11DE9 16FF4-16FF6"
NUMERIC_18 = "1246F 12475-1247F 12550-12686"

# Characters that decompose, compose or are reordered today, and are plain to the normalisers.
INERT = """
558 58B-58C 5C8-5C9 7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1AF0 1DF6-1DFA 209D-209F 32FF
A7F1-A7F4 A82C AB69 105C9 105D2 105DA 105E4 10781-10785 10787-107B0 107B2-107BF 10D24-10D27
10D69-10D6D 10EAB-10EAC 10ECB-10ECF 10EF0-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B
11382-11385 1138B 1138E 11390-11391 113B8 113BB 113C2 113C5 113C7-113C9 113CE-113D0 1145E
11839-1183A 11930 11935 11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97
11F41-11F42 1611E-16129 1612F 16D63 16D67-16D6A 16FF0-16FF1 1B123-1B126 1CCD6-1CCF9 1D127-1D128
1D250-1D252 1D25B-1D25C 1D25F 1D280-1D281 1D6A6 1DF95 1DFCD-1DFFF 1E030-1E06D 1E08F 1E130-1E136
1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5 1F16C 1FBF0-1FBF9
"""

NEVER_ASSIGNED = "\ufdd0"  # a noncharacter: unassigned in every version, past and future


def characters(ranges: str) -> frozenset[str]:
    """The characters of "558 58B-58C ...", hexadecimal, ends included."""
    found: set[str] = set()
    for item in ranges.split():
        first, _, last = item.partition("-")
        found.update(map(chr, range(int(first, 16), int(last or first, 16) + 1)))
    return frozenset(found)


def as_class(ranges: str) -> str:
    """The same ranges as the inside of a regular expression's class."""
    return "".join(
        "-".join(f"\\U{int(end, 16):08X}" for end in item.split("-")) for item in ranges.split()
    )


@cache
def stand_ins() -> dict[str, str]:
    """What a pattern sees in place of a character that Unicode 16 did not know."""
    table = dict.fromkeys(characters(AFTER_16), NEVER_ASSIGNED)
    table["\u0295"] = "\u0296"  # Unicode 17 moved this letter from Ll to Lo, not its neighbour
    return table


def as_unicode_16(text: str) -> str:
    """The text as a pattern should see it: as long as the original, so that offsets agree."""
    if text.isascii() or stand_ins().keys().isdisjoint(text):
        return text
    return "".join(stand_ins().get(character, character) for character in text)
