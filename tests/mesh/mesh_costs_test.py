"""Products, collectives and links counted by hand."""

from t0.mesh import costs


def test_collective_ring_bytes_and_einsum_flops():
    assert costs.ring_wire_bytes("all-reduce", 800, 8) == 1400
    assert costs.ring_wire_bytes("all-to-all", 800, 8) == 700
    assert costs.einsum_flops("bld,df->blf", [(2, 3, 4), (4, 5)]) == 2 * 2 * 3 * 4 * 5
    assert costs.group_axes([0, 2], ["batch", "model"], [2, 2]) == ("batch",)
    assert costs.group_axes([0, 1, 2, 3], ["batch", "model"], [2, 2]) == ("batch", "model")


def test_collective_link_sharing_counts_rings_on_busiest_link():
    shape = (1, 2, 2, 2)  # Z, Y, X, cores: two rows of two chips
    assert costs.rings_on_busiest_link([[0, 1], [2, 3]], shape) == 0  # within chips: no link
    assert costs.rings_on_busiest_link([[0, 2]], shape) == 1
    assert costs.rings_on_busiest_link([[0, 2], [1, 3]], shape) == 2
