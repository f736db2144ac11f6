"""Named devices: known ridges, how names are found, refusals, figures that are plausible."""

import pytest

from minifer import MiniferError
from minifer.observe.devices import DEVICES, Device, find_device

KINDS = {"gpu", "tpu", "cpu"}
DTYPES = {"float32", "float16", "bfloat16"}


@pytest.mark.parametrize(("name", "ridge"), [("A100-80G", 153), ("H100-SXM", 295)])
def test_the_ridges_everybody_quotes(name, ridge):
    assert round(find_device(name).ridge("float16")) == ridge
    assert round(find_device(name).ridge("bfloat16")) == ridge


@pytest.mark.parametrize("name", DEVICES)
def test_every_entry_is_found_by_its_name_however_written(name):
    for written in (name, name.lower(), name.upper(), name.replace("-", " "), f" {name}_"):
        assert find_device(written) is DEVICES[name]
    assert DEVICES[name].name == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("a100", "A100-80G"),
        ("A100 80GB", "A100-80G"),
        ("a100_40gb", "A100-40G"),
        ("h100", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("Tesla V100-SXM2-32GB", "V100-32G"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("trillium", "TPU-v6e"),
        ("Cloud TPU v5e", "TPU-v5e"),
        ("Intel Xeon Platinum 8480+", "Xeon-8480+"),
        ("Apple M2 Ultra", "M2-Ultra"),
        ("7950x", "Ryzen-9-7950X"),
    ],
)
def test_aliases(alias, name):
    assert find_device(alias).name == name


@pytest.mark.parametrize(("wrong", "near"), [("h101", "H100-SXM"), ("rtx4080", "RTX-4090")])
def test_an_unknown_name_is_refused_with_the_near_ones_and_how_to_list_all(wrong, near):
    with pytest.raises(MiniferError, match=f"no device is called '{wrong}'") as refused:
        find_device(wrong)
    assert near in str(refused.value)
    assert str(refused.value).endswith("python -m minifer inspect --device-spec list")


@pytest.mark.parametrize("wrong", ["", "abacus machine", "nvidia", None, 5])
def test_a_name_near_nothing_or_no_name_is_refused_too(wrong):
    with pytest.raises(MiniferError, match="no device is called.*all of them"):
        find_device(wrong)


@pytest.mark.parametrize("name", ["mi300", "mi250", "a800", "h800"])
def test_a_relative_with_other_figures_is_no_alias(name):
    with pytest.raises(MiniferError):
        find_device(name)


@pytest.mark.parametrize("name", ["T4", "V100-32G", "M2-Ultra"])
def test_no_peak_is_made_up_for_a_dtype_without_one(name):
    device = find_device(name)
    assert "bfloat16" not in device.peak_flops
    message = f"{name} has no peak for 'bfloat16'.*it has float32, float16"
    for ask in (device.peak, device.ridge):
        with pytest.raises(MiniferError, match=message):
            ask("bfloat16")


def test_a_tpu_has_bfloat16_alone():
    with pytest.raises(MiniferError, match="TPU-v5e has no peak for 'float32'.*it has bfloat16"):
        find_device("v5e").peak("float32")


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_figure_is_plausible(device: Device):
    assert device.kind in KINDS
    assert device.peak_flops and set(device.peak_flops) <= DTYPES
    assert all(1e12 < flops < 5e15 for flops in device.peak_flops.values())
    assert 5e10 < device.bandwidth < 1e13
    assert 1.5e10 <= device.memory_bytes <= 6e12
    assert all(5 < device.ridge(dtype) < 1000 for dtype in device.peak_flops)
    full = device.peak_flops.get("float32", 0)
    assert all(flops >= full for flops in device.peak_flops.values())
    # The whole memory is read in 16 ms to 15 s: a slip by 1,000 in either figure falls outside.
    assert 0.01 < device.memory_bytes / device.bandwidth < 15


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_entry_says_where_it_is_from_and_what_was_read_again(device: Device):
    assert device.source.startswith(("NVIDIA ", "AMD ", "Google ", "Intel ", "Apple"))
    assert "20" in device.source or "page" in device.source
    assert "seen" in device.source or "not re-checked" in device.source
    if device.kind == "cpu":
        assert "Computed: " in device.source and "per cycle" in device.source


def test_computed_figures():
    xeon = find_device("xeon 8480+")
    assert xeon.peak("bfloat16") == pytest.approx(114.688e12)
    assert xeon.bandwidth == pytest.approx(307.2e9)
    assert find_device("epyc 9654").bandwidth == pytest.approx(460.8e9)
    assert find_device("7950x").peak("float32") == pytest.approx(2.304e12)
