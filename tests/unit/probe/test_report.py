"""Probes of made-up clusters whose truth is known."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tools.errors import InputError
from tools.hardware import get_device
from tools.model.calibration import shipped_calibration
from tools.model.constants import resolve
from tools.model.predict import predict
from tools.model.update import calibrate
from tools.physics.encode import encode
from tools.probe.layers import samples_of
from tools.probe.measured import RESULT, Collective, Link, Probe, ProbeSettings, Product, RankFacts
from tools.probe.report import read_probe, report_of, settings_for
from tools.scenario import parse_scenario

DEVICE = get_device("h100-sxm-80gb")
NODES, WIDE = 3, 8


def made_up(link_share: float = 0.8, network_share: float = 0.9) -> Probe:
    """A quiet cluster whose links reach these shares of the catalogue's figures."""
    settings = settings_for("h100-sxm-80gb", ["bf16"], 60.0)
    ranks = [RankFacts(i, f"node{i // WIDE}", "H100", 3.3e12, 6e-6) for i in range(NODES * WIDE)]
    rate = 0.7 * DEVICE.peak_flops["bf16"]
    products = [
        Product(i, "bf16", *shape, 2.0 * shape[0] * shape[1] * shape[2] / rate)
        for i in range(len(ranks))
        for shape in settings.products
    ]
    rates = {
        "node": (WIDE, link_share * DEVICE.intra_node_bytes_per_s),
        "network": (NODES, network_share * DEVICE.inter_node_bytes_per_s),
    }
    collectives = [
        Collective(group, size, kind, message, 2e-5 + passes * message * (size - 1) / size / rate)
        for group, (size, rate) in rates.items()
        for kind, passes in (("all_gather", 1), ("all_reduce", 2))
        for message in (4096, 2**24, 2**28)
    ]
    links = [Link(i, i + 1, False, 5e-6, 4e11) for i in range(0, NODES * WIDE, 2)]
    links += [Link(a * WIDE, b * WIDE, True, 1e-5, 3e11) for a in range(NODES) for b in range(a)]
    return Probe(
        settings, WIDE, "nccl", tuple(ranks), tuple(products), tuple(collectives), tuple(links), 61.0
    )


def test_constants_are_those_that_make_the_model_take_what_was_measured() -> None:
    report = report_of(made_up())
    assert report.constants["fast_link_efficiency"] == pytest.approx(0.8, rel=1e-6)
    assert report.constants["slow_link_efficiency"] == pytest.approx(0.9, rel=1e-6)
    assert report.constants["host_kernel_s"] == pytest.approx(6e-6)
    assert not report.findings
    learned = calibrate([report.run])
    moved = {constant.name: constant.after for constant in learned.constants}
    assert moved["slow_link_efficiency"] == pytest.approx(0.9, rel=0.05)
    usual = resolve(encode([report.run.scenario])[1], shipped_calibration().shifts)
    assert learned.runs == 1
    assert moved["slow_link_efficiency"] > float(usual.slow_link_efficiency)


def test_the_slow_rank_and_the_slow_link_are_named_and_no_other() -> None:
    probe = made_up()
    slow = [replace(p, seconds=p.seconds * 1.3) if p.rank == 11 else p for p in probe.products]
    links = [replace(ln, bytes_per_s=ln.bytes_per_s / 2) if ln.second == 8 else ln for ln in probe.links]
    findings = report_of(replace(probe, products=tuple(slow), links=tuple(links))).findings
    named = {f.what for f in findings}
    assert named == {"rank 11", "node2 to node1"}


def test_a_probe_is_read_back_and_anything_else_refused(tmp_path: Path) -> None:
    probe = made_up()
    (tmp_path / RESULT).write_text(json.dumps(asdict(probe)))
    assert read_probe(tmp_path) == probe
    (tmp_path / RESULT).write_text('{"settings": 3}')
    with pytest.raises(InputError, match="settings"):
        read_probe(tmp_path)
    with pytest.raises(InputError, match="precision"):
        settings_for("h100", ["int7"], 60.0)
    assert ProbeSettings("cpu", (), ()).seconds == 60.0


def test_samples_of_a_plan_are_legal_jobs_of_one_node_with_its_degrees() -> None:
    scenario = parse_scenario(
        {
            "model": {
                "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
                "vocab_size": 129280,
                "num_attention_heads": 128, "num_experts": 256, "num_experts_per_tok": 8,
                "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
            },
            "cluster": {"device": "h100", "num_devices": 256, "devices_per_node": 8},
            "training": {
                "seq_len": 4096, "global_batch_size": 1024, "precision": "bf16", "framework": "megatron-core",
            },
            "plan": {
                "tp": 2, "pp": 8, "vpp": 2, "cp": 1, "ep": 16, "dp": 16, "dp_shard": 16, "zero_stage": 1,
                "micro_batch_size": 1, "sequence_parallel": True, "recompute": "full",
            },
        }
    )  # fmt: skip
    samples = samples_of(scenario)
    assert len({s.model_dump_json() for s in samples}) == 3
    for sample in samples:
        assert sample.plan is not None
        assert sample.cluster.num_devices == 8
        assert (sample.plan.tp, sample.plan.pp, sample.plan.ep, sample.plan.micro_batch_size) == (2, 1, 8, 1)
        assert 0 < sample.model.first_k_dense_replace < sample.model.num_hidden_layers
    assert all(prediction.step_time_s > 0 for prediction in predict(samples))


def test_products_of_nodes_with_other_memory_are_read_with_that_memory() -> None:
    """With the catalogue's slower memory a product would seem to wait, and its arithmetic to be faster."""
    fast = [replace(rank, copy_bytes_per_s=10 * rank.copy_bytes_per_s) for rank in made_up().ranks]
    usual, other = report_of(made_up()), report_of(replace(made_up(), ranks=tuple(fast)))
    assert other.overrides["memory_bandwidth_gbytes_per_s"] == pytest.approx(33000)
    assert other.constants["gemm_efficiency"] < usual.constants["gemm_efficiency"]


def test_a_probe_of_busy_nodes_is_refused_by_what_keeps_them_busy(tmp_path: Path) -> None:
    busy = replace(made_up(), ranks=(), products=(), busy=("node1 has 60% of its cores in use",))
    (tmp_path / RESULT).write_text(json.dumps(asdict(busy)))
    with pytest.raises(InputError, match="node1 has 60%"):
        read_probe(tmp_path)
