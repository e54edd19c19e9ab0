"""Forty ways in which people write what they train on and how much at once, written before the parser."""

import pytest

from tools.errors import InputError
from tools.frameworks.words import parse_amount, parse_devices

DEVICES = [
    ("64 x H100", 64, "h100-sxm-80gb", None),
    ("64 H100s", 64, "h100-sxm-80gb", None),
    ("64xH100", 64, "h100-sxm-80gb", None),
    ("64 × H100 SXM", 64, "h100-sxm-80gb", None),
    ("H100 x 64", 64, "h100-sxm-80gb", None),
    ("64 x 4090", 64, "rtx-4090", None),
    ("8x RTX 4090", 8, "rtx-4090", None),
    ("8 nodes x 8 H100", 64, "h100-sxm-80gb", 8),
    ("2x8xH100", 16, "h100-sxm-80gb", 8),
    ("8 nodes of 8 H100s", 64, "h100-sxm-80gb", 8),
    ("8x8 H100", 64, "h100-sxm-80gb", 8),
    ("2 nodes with 4 A100s each", 8, "a100-sxm-80gb", 4),
    ("16 nodes, 8 H200 per node", 128, "h200-sxm-141gb", 8),
    ("8x H100 per node, 4 nodes", 32, "h100-sxm-80gb", 8),
    ("512 A100-80GB", 512, "a100-sxm-80gb", None),
    ("32 x A100 40GB", 32, "a100-sxm-40gb", None),
    ("1,024 H200 GPUs", 1024, "h200-sxm-141gb", None),
    ("256 AMD Instinct MI300X", 256, "mi300x", None),
    ("256 TPU v5p chips", 256, "tpu-v5p", None),
    ("v6e-256", 256, "tpu-v6e", None),
    ("v5p-512", 256, "tpu-v5p", None),
    ("4 x p5.48xlarge", 32, "h100-sxm-80gb", 8),
    ("2 DGX H100", 16, "h100-sxm-80gb", 8),
    ("2 racks of GB200 NVL72", 144, "gb200", None),
    ("64 NVIDIA H100 80GB HBM3", 64, "h100-sxm-80gb", None),
    ("64 NVIDIA H100 Tensor Core GPUs", 64, "h100-sxm-80gb", None),
    ("eight H100s", 8, "h100-sxm-80gb", None),
    ("H100:8", 8, "h100-sxm-80gb", None),
    ("gpu:a100:4", 4, "a100-sxm-80gb", None),
    ("64 GPUs (H100)", 64, "h100-sxm-80gb", None),
    ("a single L40S", 1, "l40s", None),
    ("16 trn2.48xlarge", 256, "trainium2", 16),
]
LATER = [
    ("16x A100 80GB SXM4", 16, "a100-sxm-80gb", None),
    ("a100 80gb (8x)", 8, "a100-sxm-80gb", None),
    ("3 nodes 8xMI325X", 24, "mi325x", 8),
    ("Four DGX B200 systems", 32, "b200", 8),
    ("128 chips of TPU v6e", 128, "tpu-v6e", None),
    ("32 NVIDIA B300 GPUs", 32, "b300", None),
    ("8-GPU H100 node", 8, "h100-sxm-80gb", None),
    ("2 nodes (8 x H100 SXM5 80GB each)", 16, "h100-sxm-80gb", 8),
    ("H200-141GB x16", 16, "h200-sxm-141gb", None),
    ("1 node, 4x L40S", 4, "l40s", 4),
    ("64 gaudi-3", 64, "gaudi3", None),
    ("TPU v5e-16", 16, "tpu-v5e", None),
    ("cluster of 512 H800s", 512, "h800-sxm-80gb", None),
    ("256 GPUs, MI355X", 256, "mi355x", None),
    ("12 x 8 x B200", 96, "b200", 8),
    ("NVIDIA A100-SXM4-80GB x 8", 8, "a100-sxm-80gb", None),
    ("8 V100 32GB", 8, "v100-sxm-32gb", None),
    ("24 RTX 5090s", 24, "rtx-5090", None),
    ("6 × RTX PRO 6000 Blackwell", 6, "rtx-pro-6000-blackwell", None),
    ("ND96isr_H100_v5 x 4", 32, "h100-sxm-80gb", 8),
]
"""Written without looking at the parser, after it: 14 of the 20 were understood at first."""
UNSEEN = [
    ("64 H100, 8 per node", 64, "h100-sxm-80gb", 8),
    ("512 H100 GPUs (8 per node)", 512, "h100-sxm-80gb", 8),
    ("64 H100 on 8 nodes", 64, "h100-sxm-80gb", 8),
    ("128 H200s across 16 nodes", 128, "h200-sxm-141gb", 8),
    ("32 A100 80GB over 4 nodes", 32, "a100-sxm-80gb", 8),
    ("4 nodes, 8 GPUs per node, H100", 32, "h100-sxm-80gb", 8),
    ("8 GPUs per node, 4 nodes of H100", 32, "h100-sxm-80gb", 8),
    ("16 nodes with 4 GB200 each", 64, "gb200", 4),
    ("2048 x H100-SXM5-80GB", 2048, "h100-sxm-80gb", None),
    ("MI300X x 128", 128, "mi300x", None),
    ("one node of 8 B200", 8, "b200", 8),
    ("two 8xH100 nodes", 16, "h100-sxm-80gb", 8),
    ("a DGX H100", 8, "h100-sxm-80gb", 8),
    ("sixteen H100s", 16, "h100-sxm-80gb", None),
    ("~64 H100", 64, "h100-sxm-80gb", None),
    ("64 * H100", 64, "h100-sxm-80gb", None),
    ("16 p5.48xlarge instances", 128, "h100-sxm-80gb", 8),
    ("64 H100 80GB", 64, "h100-sxm-80gb", None),
    ("24,576 H100s", 24576, "h100-sxm-80gb", None),
    ("8 servers with 8 x MI300X", 64, "mi300x", 8),
    ("64 H20", 64, "h20-sxm-96gb", None),
    ("32x GB200", 32, "gb200", None),
    ("256 H100 in total, 8 per node", 256, "h100-sxm-80gb", 8),
    ("32 nodes × 8 H100", 256, "h100-sxm-80gb", 8),
    ("8xH100 nodes x 4", 32, "h100-sxm-80gb", 8),
    ("H100, 64 of them", 64, "h100-sxm-80gb", None),
    ("64 Hopper H100 GPUs", 64, "h100-sxm-80gb", None),
    ("NVIDIA H100 SXM5, 64", 64, "h100-sxm-80gb", None),
    ("my 8 H100s", 8, "h100-sxm-80gb", None),
    ("8 nodes, 64 H100 in total", 64, "h100-sxm-80gb", 8),
]
"""Thirty of forty (with ten amounts) that were written before the parser was changed for them: it understood
19, and took 6 for another number of devices."""
SILENTLY_WRONG = [
    ("4 H100 nodes", 32, "h100-sxm-80gb", 8),
    ("64 GPU nodes (H100)", 512, "h100-sxm-80gb", 8),
    ("H100 node x 4", 32, "h100-sxm-80gb", 8),
    ("4 DGX H100, 8 per node", 32, "h100-sxm-80gb", 8),
    ("4 x 8 H100 per node", 32, "h100-sxm-80gb", 8),
    ("64 H100 on 8 nodes, 8 per node", 64, "h100-sxm-80gb", 8),
    ("4 x Standard_ND96isr_H100_v5", 32, "h100-sxm-80gb", 8),
    ("24 nodes, each with 8 MI300X", 192, "mi300x", 8),
]
"""Found afterwards, by looking for more of the kind."""
AMOUNTS = [
    ("128", 128),
    ("1,024", 1024),
    ("8k", 8192),
    ("128K", 131_072),
    ("1024 sequences", 1024),
    ("4M tokens", 512),
    ("16M tokens", 2048),
    ("4,194,304 tokens", 512),
    ("1.5M tokens", 192),
    ("0.5M tokens", 64),
    ("2m tokens", 256),
    ("4Mi tokens", 512),
    ("4 million tokens", 512),
    ("32k", 32_768),
    ("256 seqs", 256),
    ("512 samples", 512),
    ("8.192e6 tokens", 1000),
    ("2^20 tokens", 128),
    ("16 M tok", 2048),
    ("32Ki", 32_768),
    ("512 x 8k", 512),
]
"""Of sequences, at 8192 tokens each."""


@pytest.mark.parametrize(
    ("text", "count", "device", "per_node"), [*DEVICES, *LATER, *UNSEEN, *SILENTLY_WRONG]
)
def test_devices_are_understood(text: str, count: int, device: str, per_node: int | None) -> None:
    assert tuple(parse_devices(text, "devices")) == (count, device, per_node)


@pytest.mark.parametrize(("text", "value"), AMOUNTS)
def test_amounts_are_understood(text: str, value: int) -> None:
    assert parse_amount(text, "training.global_batch_size", 8192) == value


def test_a_rack_and_its_device_are_not_confused() -> None:
    """The one of the forty that stays refused: it may mean 2 or 144."""
    with pytest.raises(InputError, match="144 x GB200"):
        parse_devices("2 x GB200 NVL72", "devices")


@pytest.mark.parametrize(
    "text",
    ["60 H100 on 8 nodes", "64 H100 on 8 nodes, 4 per node", "8 H100 per node", "4 DGX H100, 4 per node"],
)
def test_numbers_that_do_not_agree_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="allowed"):
        parse_devices(text, "devices")


def test_a_thousand_devices_are_not_guessed() -> None:
    with pytest.raises(InputError, match="say 10000 or 10240"):
        parse_devices("10k H100", "devices")


@pytest.mark.parametrize(
    "text", ["", "H100", "0 x H100", "64 x", "64 x H1000", "x", "9" * 30 + " H100", "3 4 5 6 H100"]
)
def test_what_nobody_could_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"64 x H100|did you mean|known:"):
        parse_devices(text, "devices")


@pytest.mark.parametrize(
    "text", ["3M", "5 tokens", "1.5", "many", "4M tokens of text", "512 x 4k", "2^99 tokens"]
)
def test_an_amount_that_is_no_whole_number_of_sequences_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="global_batch_size"):
        parse_amount(text, "training.global_batch_size", 8192)
