"""Attributing what a VM called to the partitions."""

from __future__ import annotations

from collage_engine.build.built import Kernel, attribute_kernels

KERNELS = (
    Kernel(name="conv", part=0),
    Kernel(name="reshape", part=0),
    Kernel(name="p1_onednn", part=1),
    Kernel(name="conv", part=2),
)


def test_a_kernel_shared_by_two_partitions_is_told_apart_by_its_place():
    seen = [
        ("vm.builtin.alloc_tensor", 0.1),
        ("conv", 5.0),
        ("reshape", 1.0),
        ("p1_onednn", 7.0),
        ("conv", 6.0),
    ]
    owned, outside = attribute_kernels(KERNELS, seen)
    assert owned == [6.0, 7.0, 6.0]
    assert outside == []


def test_a_dropped_kernel_is_skipped_and_a_stranger_is_listed():
    # TVM turned the reshape kernel into a view, and put a conversion in.
    seen = [
        ("conv", 5.0),
        ("vm.builtin.reshape", 0.2),
        ("cast", 3.0),
        ("p1_onednn", 7.0),
        ("conv", 6.0),
        ("vm.builtin.to_device", 2.0),
    ]
    owned, outside = attribute_kernels(KERNELS, seen)
    assert owned == [5.0, 7.0, 6.0]
    assert outside == [("cast", 3.0), ("vm.builtin.to_device", 2.0)]


def test_a_model_without_kernels_has_no_partitions():
    assert attribute_kernels((), [("vm.builtin.make_tuple", 0.1)]) == ([], [])
