"""Peaks and bandwidths that vendors publish, to draw a roof for a machine that is not here.

`peak_flops` is dense, never with sparsity, 2 FLOPs per multiply-add: for 16 bits the matrix units
(tensor cores, MXU, AMX), for float32 the vector units, not TF32. Bandwidth and memory are decimal,
as printed on the sheet. A peak is a ceiling nobody reaches: measured roofs say how far below it is.

`source` names the vendor's document. "Seen in" is where its figures were read again when this
table was written (2026-12), a copy or a quotation; UNCHECKED marks what was not read again. The
sheets themselves were not at hand: their years are from memory, so go by the title.
A dtype without a figure is absent, so that nothing is predicted from a number nobody published.
"""

import difflib
import re
from typing import NamedTuple

from ..errors import MiniferError

UNCHECKED = "from the vendor's data sheet, not re-checked here"


class Device(NamedTuple):
    """One accelerator or CPU socket: FLOP/s by dtype, bytes/s, bytes, and who says so."""

    name: str
    kind: str  # "gpu", "tpu" or "cpu"
    peak_flops: dict[str, float]
    bandwidth: float
    memory_bytes: float
    source: str

    def peak(self, dtype: str) -> float:
        """FLOP/s in a dtype; MiniferError where the table has none, naming those it has."""
        if dtype not in self.peak_flops:
            raise MiniferError(
                f"{self.name} has no peak for {dtype!r:.40}: it does not compute in that dtype "
                f"natively, or nobody publishes how fast; it has {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[dtype]

    def ridge(self, dtype: str) -> float:
        """FLOP per byte above which arithmetic, below which memory is the roof."""
        return self.peak(dtype) / self.bandwidth


def _gpu(
    name: str, float32: float, half: float, bandwidth: float, memory: float, source: str
) -> Device:
    """A GPU that runs float16 and bfloat16 at one rate; T, T, G, G as sheets print them."""
    peaks = {"float32": float32 * 1e12, "float16": half * 1e12, "bfloat16": half * 1e12}
    return Device(name, "gpu", peaks, bandwidth * 1e9, memory * 1e9, source)


def _without_bfloat16(device: Device) -> Device:
    peaks = {k: v for k, v in device.peak_flops.items() if k != "bfloat16"}
    return device._replace(peak_flops=peaks)


def _tpu(name: str, bfloat16: float, bandwidth: float, memory: float, source: str) -> Device:
    """One chip. Float32 products take several bfloat16 passes, and no figure is published."""
    return Device(name, "tpu", {"bfloat16": bfloat16 * 1e12}, bandwidth * 1e9, memory, source)


_LIGHTNING = "seen in Lightning-AI/pytorch-lightning src/lightning/fabric/utilities/throughput.py"
_VIEWER = "hahnyuan/LLM-Viewer hardwares/hardware_params.py"
_STAS = "stas00/ml-engineering compute/accelerator/README.md"
_REPORT = "alpharomercoma/MI300X-vs-H200 REPORT.md"
_CLOCK = "at the base clock: turbo raises it, wide vector load lowers it"

_TABLE = (
    _gpu(
        "A100-40G", 19.5, 312, 1555, 40,
        f"NVIDIA A100 data sheet 1758950-r4 (SXM4), 2021; {_LIGHTNING} and {_VIEWER}",
    ),
    _gpu(
        "A100-80G", 19.5, 312, 2039, 80,
        f"NVIDIA A100 data sheet 1758950-r4 (SXM4), 2021; {_LIGHTNING} and {_VIEWER}",
    ),
    _gpu(
        "H100-SXM", 67, 989.4, 3350, 80,
        "NVIDIA H100 Tensor Core GPU data sheet (SXM5), 2023; 16 bits: 1,979 with sparsity, "
        f"halved; {_LIGHTNING} and {_STAS}; 989.4 in {_REPORT}",
    ),
    _gpu(
        "H100-PCIe", 51, 756.5, 2000, 80,
        "NVIDIA H100 Tensor Core GPU data sheet (PCIe), 2023; 16 bits: 1,513 with sparsity, "
        f"halved; {_LIGHTNING} and {_STAS}",
    ),
    _gpu(
        "H200", 67, 989.4, 4800, 141,
        f"NVIDIA H200 Tensor Core GPU data sheet (SXM), 2024; seen in {_STAS} and {_REPORT}",
    ),
    _gpu(
        "B200", 80, 2250, 8000, 180,
        "NVIDIA Blackwell Architecture Technical Brief, 2024 (HGX B200, 1,000 W); seen quoted in "
        "glennklockwood.com/garden/processors/B200. Memory: 192 GB in the brief, 180 GB usable in "
        "systems as sold (seen in MLPerf Inference 6.0 system files)",
    ),
    _gpu(
        "L4", 30.3, 121, 300, 24,
        "NVIDIA L4 Tensor Core GPU data sheet, 2023; 16 bits: 242 with sparsity, halved; seen "
        "quoted in grokipedia.com/page/NVIDIA_L4_vs_L40S; float32 in fpsbench.com",
    ),
    _gpu(
        "L40S", 91.6, 362.05, 864, 48,
        "NVIDIA L40S data sheet, 2023; seen quoted in a dealer's table (mullet.se)",
    ),
    _gpu(
        "A10", 31.2, 125, 600, 24,
        f"NVIDIA A10 data sheet, 2021; FLOP/s {_LIGHTNING}; "
        "bandwidth seen in cli99/llm-analysis llm_analysis/gpu_configs",
    ),
    _without_bfloat16(
        _gpu(
            "T4", 8.1, 65, 320, 16,
            "NVIDIA T4 Tensor Core GPU data sheet 951643, 2019 (320+ GB/s printed); FLOP/s "
            f"{_LIGHTNING}; bandwidth and memory {UNCHECKED}",
        )
    ),
    _without_bfloat16(
        _gpu(
            "V100-32G", 15.7, 125, 900, 32,
            "NVIDIA V100 Tensor Core GPU data sheet 1165301-r5 (SXM2), 2020; FLOP/s "
            f"{_LIGHTNING}; bandwidth {_VIEWER}",
        )
    ),
    _gpu(
        "RTX-3090", 35.6, 71, 936, 24,
        "NVIDIA Ampere GA102 GPU Architecture whitepaper v2, 2020; 16 bits with float32 "
        f"accumulation (142 with float16); 16 bits {UNCHECKED}, the rest seen in a specification "
        "table (holynerdvana.blogspot.com)",
    ),
    _gpu(
        "RTX-4090", 82.6, 165.2, 1008, 24,
        "NVIDIA Ada GPU Architecture whitepaper v2, 2022; 16 bits with float32 accumulation; seen "
        "in waredb.com/processor/nvidia-geforce-rtx-4090",
    ),
    _gpu(
        "MI300X", 163.4, 1307.4, 5300, 192,
        "AMD Instinct MI300X Accelerator data sheet, 2023 (float32: vector); seen in "
        f"{_STAS}, the exact 16-bit figure in {_REPORT}",
    ),
    _gpu(
        "MI250X", 47.9, 383, 3276.8, 128,
        "AMD Instinct MI250X Accelerator data sheet, 2021 (float32: vector); two dies, which ROCm "
        f"shows as two devices of half of everything; seen in {_STAS}; the last digits of the "
        f"bandwidth {UNCHECKED}",
    ),
    _tpu(
        "TPU-v4", 275, 1200, 32 * 2**30,
        "Google Cloud TPU documentation, page 'TPU v4' (prints 32 GiB); seen in "
        "docs.cloud.google.com/tpu/docs/v4",
    ),
    _tpu(
        "TPU-v5e", 197, 819, 16e9,
        "Google Cloud TPU documentation, page 'TPU v5e'; seen in docs.cloud.google.com/tpu/docs/"
        "v5e, one version of which prints 800 GiBps in place of 819 GBps",
    ),
    _tpu(
        "TPU-v5p", 459, 2765, 95e9,
        "Google Cloud TPU documentation, page 'TPU v5p'; seen in "
        "cloud.google.com/tpu/docs/v5p-training",
    ),
    _tpu(
        "TPU-v6e", 918, 1638, 32e9,
        "Google Cloud TPU documentation, page 'TPU v6e' (Trillium; older versions print 1,640); "
        "seen in docs.cloud.google.com/tpu/docs/v6e",
    ),
    Device(
        "EPYC-9654", "cpu", {"float32": 96 * 2.4e9 * 32}, 12 * 4.8e9 * 8, 6e12,
        "AMD EPYC 9004 Series data sheet, 2022, one socket. Computed: 96 cores x 2.4 GHz x 32 "
        f"float32 FLOPs per cycle (two 256-bit FMA), {_CLOCK}; 12 channels x 4,800 MT/s x 8 bytes; "
        "cores, clock, channels and the largest memory seen in hpctech.co.jp. bfloat16 "
        "instructions exist, a rate to cite was not found",
    ),
    Device(
        "Xeon-8480+", "cpu",
        {
            "float32": 56 * 2.0e9 * 64,
            "float16": 56 * 2.0e9 * 128,
            "bfloat16": 56 * 2.0e9 * 1024,
        },
        8 * 4.8e9 * 8, 4e12,
        "Intel ARK, Xeon Platinum 8480+, 2023, one socket. Computed: 56 cores x 2.0 GHz x 64 "
        "(float32) or 128 (float16, AVX-512) or 1,024 (bfloat16, AMX; seen in Wikipedia's "
        f"'Advanced Matrix Extensions') FLOPs per cycle, {_CLOCK}; 8 channels x 4,800 MT/s x 8 "
        f"bytes; cores and channels seen in servethehome.com; clock and memory {UNCHECKED}",
    ),
    Device(
        "Ryzen-9-7950X", "cpu", {"float32": 16 * 4.5e9 * 32}, 2 * 5.2e9 * 8, 128e9,
        "AMD Ryzen 9 7950X product page, 2022. Computed: 16 cores x 4.5 GHz x 32 float32 FLOPs "
        f"per cycle (two 256-bit FMA), {_CLOCK}; 2 channels x 5,200 MT/s x 8 bytes; cores, clock "
        f"and DDR5-5200 seen in web-autoai.com; memory {UNCHECKED}",
    ),
    Device(
        "M2-Ultra", "gpu", {"float32": 27.2e12, "float16": 27.2e12}, 800e9, 192e9,
        "Apple, Mac Pro (2023) page: 27.2 teraflops, the 76-core GPU alone, not the CPU; seen in a "
        "copy of it. float16 at the float32 rate, which Apple does not publish (seen for M1 and M2 "
        "in hmc-tech.com); bandwidth and memory from the announcement of 2023-06-05",
    ),
)  # fmt: skip

DEVICES: dict[str, Device] = {device.name: device for device in _TABLE}

# What a driver or a cloud calls them, and short names with one meaning; keys as _key() writes them.
_ALIASES = {
    "a100": "A100-80G", "a10080gb": "A100-80G", "a100sxm480gb": "A100-80G",
    "a100sxm": "A100-80G", "a10040gb": "A100-40G", "a100sxm440gb": "A100-40G",
    "h100": "H100-SXM", "h100sxm5": "H100-SXM", "h10080gbhbm3": "H100-SXM",
    "h200sxm": "H200", "h200sxm141gb": "H200", "b200sxm": "B200",
    "v100": "V100-32G", "v10032gb": "V100-32G", "v100sxm232gb": "V100-32G",
    "3090": "RTX-3090", "4090": "RTX-4090",
    "v4": "TPU-v4", "v5e": "TPU-v5e", "v5litepod": "TPU-v5e", "v5p": "TPU-v5p",
    "v6e": "TPU-v6e", "trillium": "TPU-v6e",
    "9654": "EPYC-9654", "8480+": "Xeon-8480+", "xeonplatinum8480+": "Xeon-8480+",
    "7950x": "Ryzen-9-7950X", "ryzen7950x": "Ryzen-9-7950X",
}  # fmt: skip
_VENDORS = re.compile("^(nvidia|geforce|tesla|amd|instinct|intel|google|cloud|apple)+")


def _key(name: str) -> str:
    """Lower case without spaces, hyphens, underscores and the vendor's own words."""
    return _VENDORS.sub("", re.sub(r"[\s_-]+", "", name.lower()))


_BY_KEY = {_key(name): name for name in DEVICES} | _ALIASES


def find_device(name: str) -> Device:
    """The entry of that name, however its case, spaces, hyphens and underscores are written.

    Short names with a usual meaning work too: "a100" is A100-80G, "h100" is H100-SXM, "v100" is
    V100-32G, "4090" is RTX-4090, "trillium" is TPU-v6e; a vendor's name in front is ignored, and
    names as drivers print them ("NVIDIA A100-SXM4-80GB") are known. MiniferError otherwise.
    """
    key = _key(name) if isinstance(name, str) else ""
    if key in _BY_KEY:
        return DEVICES[_BY_KEY[key]]
    close = difflib.get_close_matches(key, _BY_KEY, n=4, cutoff=0.5)
    near = ", ".join(dict.fromkeys(_BY_KEY[found] for found in close))
    raise MiniferError(
        f"no device is called {name!r:.60}"
        + (f"; near it: {near}" if near else "")
        + "; all of them: python -m minifer inspect --device-spec list"
    )
