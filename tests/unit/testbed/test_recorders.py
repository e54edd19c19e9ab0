"""FLOPs and live memory, counted on small tensors by hand."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from testbed.recorders import FlopRecorder, MemoryRecorder, Watch  # noqa: E402


@pytest.mark.parametrize(("causal", "pairs"), [(True, 6 * 7 // 2), (False, 6 * 6)])
def test_attention_counts_the_pairs_it_computes_and_five_products_backward(causal: bool, pairs: int) -> None:
    flops = FlopRecorder()
    with FakeTensorMode(), Watch(flops):
        query, key, value = (torch.ones(2, 4, 6, 8, requires_grad=True) for _ in range(3))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=causal)
        forward = flops.flops
        mixed.sum().backward()  # type: ignore[no-untyped-call]
    assert forward == 2 * 2 * 4 * pairs * (8 + 8)
    assert flops.flops == forward * 7 // 2


@pytest.mark.parametrize("fake", [True, False])
def test_memory_is_what_is_alive_and_views_are_free(fake: bool) -> None:
    with FakeTensorMode() if fake else torch.enable_grad(), MemoryRecorder() as memory, Watch(memory):
        first = torch.zeros(1000)
        view = first.view(10, 100)
        second = torch.zeros(500)
        assert memory.now_bytes == 6000
        del first
        assert memory.now_bytes == 6000
        del view
        assert memory.now_bytes == 2000
        memory.restart_peak()
        third = second + 1
        del second
        assert memory.now_bytes == 2000
        assert memory.peak_bytes == 4000
        del third
    assert memory.now_bytes == 0
