"""The cost card as text, 80 columns wide, a list of lines per section."""

import math
import textwrap

from .cost_card import CostCard, Row, key_product_flops, layer_rows, parameter_split
from .devices import Device
from .inference_ledger import InferenceLedger, inference_ledger
from .prediction import Ceiling, cost_per_million
from .training_ledger import TrainingLedger, training_ledger

WIDTH = 80
NO_PROMISE = (
    "Ceilings, not forecasts: max(FLOPs / peak, bytes / bandwidth) of the data sheets, activations "
    "and launches left out. No machine reaches them, unless its caches hold the model; predictions "
    "for a real one need its measured roofs, which a later version brings."
)


def model_lines(card: CostCard, source: str, why: str, kv_why: str) -> list[str]:
    """What the card is about: the letters of the dimension key, dtypes, lengths."""
    c = card.config
    H, K = c.num_attention_heads, c.num_key_value_heads
    tied = "tied to the embedding" if c.tie_word_embeddings else "a matrix of its own"
    letters = [
        (f"D {c.hidden_size}", "width"),
        (f"L {c.num_hidden_layers}", "layers"),
        (f"F {c.intermediate_size}", "feed-forward width"),
        (f"H {H}", "query heads"),
        (f"K {K}", "key/value heads"),
        (f"G {H // K}", "= H / K"),
        (f"E {c.head_dim}", "head width"),
        (f"V {c.vocab_size}", "vocabulary"),
    ]
    texts = [f"{letter} {meaning}" for letter, meaning in letters]
    each = 3 if max(map(len, texts)) < 26 else 2  # to a row
    cells = [f"{text:<{78 // each}}" for text in texts]
    rows = ["".join(cells[i : i + each]).rstrip() for i in range(0, len(cells), each)]
    return [
        f"model        {source}",
        f"  family {c.family}, context {c.max_position_embeddings}, head {tied}",
        *(f"  {row}" for row in rows),
        *wrapped(f"weights {card.dtype} ({why})"),
        f"  KV cache {card.kv_dtype} ({kv_why})",
        *wrapped(
            f"T {card.prompt_tokens} tokens of prompt, S {card.context} cached before a decode "
            f"step, B {card.batch}"
        ),
    ]


def parameter_lines(card: CostCard) -> list[str]:
    """Where the parameters are, and what the cache takes."""
    lines = [f"{'parameters':<20}{'count':>24}{'share':>9}{'bytes':>27}"]
    each = card.weight_bytes // card.parameters
    parts = {**parameter_split(card.config), "all": card.parameters}
    for name, count in parts.items():
        share = f"{100 * count / card.parameters:.2f} %"
        lines.append(f"  {name:<18}{whole(count, 24)}{share:>9}{whole(each * count, 27)}")
    tied = ", the embedding" if card.config.tie_word_embeddings else ""
    kv, T, S = card.kv_bytes_per_token, card.prompt_tokens, card.context
    return [
        *lines,
        f"  {'in products: P_mm':<18}{whole(card.matmul_parameters, 24)}  with the head{tied}",
        f"  {'KV per token':<18}{whole(kv, 60)}",
        f"  {f'KV of T {T}':<18}{whole(kv * T, 60)}",
        f"  {f'KV of S {S}':<18}{whole(kv * S, 60)}",
    ]


def pass_lines(card: CostCard) -> list[str]:
    """Prefill and decode side by side."""
    prefill, decode = card.prefill, card.decode
    rows = [
        ("FLOPs, matrix products", prefill.flops, decode.flops),
        ("  linear layers", prefill.linear_flops, decode.linear_flops),
        ("  attention", prefill.attention_flops, decode.attention_flops),
        ("FLOPs, per element", prefill.elementwise_flops, decode.elementwise_flops),
        ("bytes", prefill.bytes, decode.bytes),
        ("  weights", prefill.weight_bytes, decode.weight_bytes),
        ("  KV read", prefill.kv_bytes_read, decode.kv_bytes_read),
        ("  KV written", prefill.kv_bytes_written, decode.kv_bytes_written),
    ]
    lengths = f"S {card.context}, B {card.batch}"
    title = f"decode, {lengths}" if len(lengths) < 20 else lengths
    return [
        f"{'one pass':<24}{f'prefill, T {card.prompt_tokens}':>28}{title:>28}",
        *(f"  {name:<22}{whole(one, 28)}{whole(other, 28)}" for name, one, other in rows),
        f"  {'FLOP/B, products':<22}{amount(prefill.intensity):>28}{amount(decode.intensity):>28}",
        *wrapped(
            f"One more cached token: {card.attention_flops_per_context_token:,} FLOPs and "
            f"{card.kv_bytes_per_token:,} bytes per sequence and step. Attention counts the pairs "
            "a query may see; activations are not among the bytes. A multiply-add is 2 FLOPs; per "
            "element, a ufunc is 1 where it writes, a reduction 1 where it reads."
        ),
    ]


def memory_lines(card: CostCard) -> list[str]:
    """What has to fit: an inference of T tokens on our reference path, or a training step."""
    T = card.prompt_tokens
    held, steps = memory(card)
    lines = [
        f"{f'memory, T {T}':<20}{'inference':>20}" + "".join(f"{f'train {v}':>20}" for v in steps)
    ]
    for name in ("weights", "gradients", "master_weights", "first_moment", "second_moment"):
        cells = [held.weights if name == "weights" else 0]
        cells += [getattr(step, name) for step in steps.values()]
        lines.append(f"  {name.replace('_', ' '):<18}" + "".join(whole(c, 20) for c in cells))
    cells = [held.peak_activations, *(step.activations for step in steps.values())]
    return [
        *lines,
        f"  {'KV cache':<18}{whole(held.kv_cache, 20)}{whole(0, 20)}{whole(0, 20)}",
        f"  {'activations':<18}" + "".join(whole(cell, 20) for cell in cells),
        f"  {'all':<18}"
        + "".join(whole(cell, 20) for cell in (held.total, *(s.total for s in steps.values()))),
        *wrapped(
            f"inference: one pass over T tokens on the NumPy reference path, float32 activations, "
            f"the most of them in: {held.peak_words()}. Training: one sequence of T, AdamW, every "
            "activation kept; observe/training_ledger.py has flash attention, checkpointing and "
            "more sequences."
        ),
    ]


def memory(card: CostCard) -> tuple[InferenceLedger, dict[str, TrainingLedger]]:
    """The ledgers of a card: inference, and a training step per variant."""
    c, T = card.config, card.prompt_tokens
    held = inference_ledger(c, T, T, card.dtype, kv_dtype=card.kv_dtype)
    return held, {v: training_ledger(c, T, variant=v) for v in ("2-byte", "fp32-master")}


def layer_lines(card: CostCard) -> list[str]:
    """A row per matrix of one layer."""
    c, T = card.config, card.prompt_tokens
    seen, computed = (key_product_flops(c, T, 0, hidden_too) / 1e9 for hidden_too in (False, True))
    return [
        f"{'one layer':<29}{f'prefill, T {T}':>25}{f'decode, B {card.batch}':>26}",
        f"  {'matrix':<10}{'in -> out':>17}"
        + f"{'GFLOP':>9}{'MB':>8}{'FLOP/B':>8}{'MFLOP':>10}{'MB':>8}{'FLOP/B':>8}",
        *map(_layer_line, layer_rows(card)),
        *wrapped(
            f"Weights and activations in {card.dtype}, each moved once; the head runs once per "
            "pass, for the last row of a sequence. Attention is q.k and weights.v with the scores "
            f"kept on the chip: q.k is {amount(seen)} GFLOP of visible pairs, {amount(computed)} "
            "where hidden ones are computed and masked. Its FLOP/B in a decode step stays under "
            "2 G / bytes of a KV element, whatever B."
        ),
    ]


def _layer_line(row: Row) -> str:
    shape = "" if row.name == "attention" else f"{row.inputs} -> {row.outputs}"
    if len(shape) > 17:
        shape = f"{row.inputs:.1e}->{row.outputs:.1e}"
    line = f"  {row.name:<10}{shape:>17}"
    for work, unit, widths in ((row.prefill, 1e9, (9, 8, 8)), (row.decode, 1e6, (10, 8, 8))):
        figures = work.flops / unit, work.bytes / 1e6, work.intensity
        line += "".join(f"{amount(x):>{width}}" for x, width in zip(figures, widths, strict=True))
    return line


def ceiling_lines(card: CostCard, ceilings: list[Ceiling]) -> list[str]:
    """What each device allows at the most."""
    lines = [
        f"{'ceilings':<23}{'TTFT':>9}{'bound by':>10}{'tok/s':>9}"
        f"{'ITL':>10}{'bound by':>10}{'tok/s':>9}"
    ]
    lines += [f"  {_marked(found):<21}{_times(found, card.dtype)}" for found in ceilings]
    short = [found.device for found in ceilings if not found.fits]
    what = f"weights and KV of {card.batch} x {card.context + 1} tokens"
    lack = wrapped(f"! memory: {what} do not fit {', '.join(short)}.") if short else []
    return [*lines, *lack, *wrapped(NO_PROMISE)]


def roof_lines(card: CostCard, ceilings: list[Ceiling]) -> list[str]:
    """The roofs the ceilings stand on, what a memory holds, and whose figures these are."""
    lines = [
        f"{'roofs':<23}{'TFLOP/s':>9}{'GB/s':>8}{'ridge':>8}{'B at ridge':>12}"
        f"{'memory':>10}{'sequences':>10}"
    ]
    sources = []
    for found in ceilings:
        peak, ridge, batch = "-", "-", "-"
        if found.peak_flops is not None:
            peak, ridge = f"{found.peak_flops / 1e12:.4g}", significant(found.ridge)
            batch = str(found.batch_at_ridge)
        lines.append(
            f"  {_marked(found):<21}{peak:>9}{found.bandwidth / 1e9:>8.4g}{ridge:>8}{batch:>12}"
            f"{f'{found.memory_bytes / 1e9:.4g} GB':>10}{whole(found.sequences_that_fit, 10)}"
        )
        sources += cited(f"{found.device}: {found.source}")
    return [
        *lines,
        *wrapped(
            f"TFLOP/s: dense peak in {card.dtype}. B at ridge: the batch from which the linear "
            "layers of a decode step are compute-bound. sequences: how many with S + 1 tokens of "
            "KV fit beside the weights, nothing else counted."
        ),
        *sources,
    ]


def _marked(found: Ceiling) -> str:
    return found.device + ("" if found.fits else " !")


def _times(found: Ceiling, dtype: str) -> str:
    if found.ttft_seconds is None:
        return f"  no peak for {dtype} on its data sheet"
    phases = (
        (9, found.ttft_seconds, found.prefill_roof, found.prefill_tokens_per_second),
        (10, found.itl_seconds, found.decode_roof, found.decode_tokens_per_second),
    )
    return "".join(
        f"{duration(seconds):>{width}}{roof:>10}{significant(rate):>9}"
        for width, seconds, roof, rate in phases
    )


def price_lines(ceilings: list[Ceiling], price_per_hour: float) -> list[str]:
    """Per million tokens; as far below a real price as the ceilings are above a real machine."""
    lines = [f"{f'price, {price_per_hour:g} per hour':<32}{'1M input':>16}{'1M output':>16}"]
    for found in ceilings:
        rates = found.prefill_tokens_per_second, found.decode_tokens_per_second
        costs = [
            "-" if r is None else significant(cost_per_million(price_per_hour, r)) for r in rates
        ]
        lines.append(f"  {_marked(found):<30}{costs[0]:>16}{costs[1]:>16}")
    note = (
        "At the ceilings: the least a million tokens can cost, input by prefill, output by decode."
    )
    return [*lines, *wrapped(note)]


def device_table(devices: list[Device], dtypes: tuple[str, ...]) -> list[str]:
    """Every data sheet: peaks in TFLOP/s, and where the figures come from."""
    lines = [f"{'device':<20}{'kind':<6}" + "".join(f"{name:>10}" for name in dtypes)
             + f"{'GB/s':>10}{'memory':>12}"]  # fmt: skip
    for device in devices:
        peaks = (device.peak_flops.get(name) for name in dtypes)
        cells = ["-" if peak is None else f"{peak / 1e12:.4g}" for peak in peaks]
        lines.append(
            f"{device.name:<20}{device.kind:<6}" + "".join(f"{cell:>10}" for cell in cells)
            + f"{device.bandwidth / 1e9:>10.4g}{f'{device.memory_bytes / 1e9:.4g} GB':>12}"
        )  # fmt: skip
        lines += cited(device.source)
    return [*lines, *wrapped("Dense peaks in TFLOP/s; float32 is not TF32.")]


def cited(text: str) -> list[str]:
    """Where a figure comes from; an address stays whole, so that it can be copied."""
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def duration(seconds: float) -> str:
    """Three digits and a unit; two where 9 characters hold no more."""
    units = (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("ps", 1e-12))
    unit, size = next((u for u in units if seconds >= 0.9995 * u[1]), units[-1])
    text = f"{significant(seconds / size)} {unit}"
    return text if len(text) < 10 else f"{seconds / size:.1e} {unit}"


def amount(value: float) -> str:
    """A figure of a table, 8 characters at most: 1024.0, 67.11, 0.0207, 2.0e-06."""
    if not 1e-3 <= value < 1e6:
        return f"{value:.1e}"
    digits = next(n for low, n in ((1e4, 0), (1e3, 1), (0.1, 2), (0, 4)) if value >= low)
    return f"{value:.{digits}f}"


def wrapped(text: str) -> list[str]:
    """A note under a table."""
    return textwrap.wrap(
        text, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def whole(count: int, width: int) -> str:
    """All digits of a count; only a number too long for its column loses some, visibly."""
    text = f"{count:,}"
    if len(text) >= width:
        text = format(count, ".6e" if width > 12 else ".2e")
    return f"{text:>{width}}"


def significant(value: float) -> str:
    """Three digits, as a prediction deserves: 12.3, 4560, 0.00123, 1.20e+09."""
    if not value or not math.isfinite(value):  # neither has a first digit
        return f"{value:g}"
    power = math.floor(math.log10(abs(float(f"{value:.2e}"))))
    if not -4 <= power < 8:
        return f"{value:.2e}"
    return f"{round(value, 2 - power):.{max(0, 2 - power)}f}"
