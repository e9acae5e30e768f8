"""Costs of a step by part: times of a trace, FLOPs and bytes are added up by scope, beside the bounds of the device."""

import gzip

import jax
import pytest

from flaxformer.targets.devices import device_of
from flaxformer.targets.part_costs import part_costs, total_cost
from flaxformer.targets.trace import instruction_seconds
from flaxformer.targets.traffic import KernelTraffic, direction_of, part_of

FORWARD, BACKWARD = "jit(f)/while/body/jvp(block_0)/attention/dot", "jit(f)/while/body/transpose(jvp(head))/dot"
KERNELS = [
    KernelTraffic("fusion.1", FORWARD, 300, 100, 14),
    KernelTraffic("fusion.2", FORWARD, 30, 10, 14),
    KernelTraffic("dot.3", BACKWARD, 7000, 0, 7),
    KernelTraffic("add.4", "jit(f)/while/body/optimizer/add", 5, 5, 7),
    KernelTraffic("copy.5", "", 1, 1, 1),
]


@pytest.mark.parametrize(
    ("scope", "part", "direction"),
    [
        (FORWARD, "attention", "forward"),
        (BACKWARD, "head", "backward"),
        ("jit(f)/transpose(jvp(checkpoint))/rematted_computation/block_0/feed_forward/dot", "feed_forward", "backward"),
        ("jit(f)/jvp(encoder)/block_1/cross_attention/mul", "cross_attention", "forward"),
        ("jit(f)/optimizer/add", "optimizer", ""),
        ("reduce_sum", "other", ""),
    ],
)
def test_a_scope_says_the_part_and_the_direction(scope, part, direction):
    assert (part_of(scope), direction_of(scope)) == (part, direction)


def test_costs_are_those_of_one_step_on_one_device():
    """A program of 7 steps on 2 devices, which the trace has twice."""
    seconds = {"fusion.1": 14.0, "fusion.2": 28.0, "dot.3": 280.0, "while.9": 1000.0}
    flops = {"jvp(block_0)/attention": 6e12, "jvp(block_1)/attention": 4e12, "transpose(jvp(head))": 8e12}
    costs = part_costs(KERNELS, seconds, flops, (14, 7), 2, device_of("NVIDIA H200"), "bfloat16")
    found = {(cost.part, cost.direction): (cost.seconds, cost.flops, cost.bytes) for cost in costs}
    assert found == {
        ("head", "backward"): (10.0, 4e12, 7000.0),
        ("attention", "forward"): (1.5, 5e12, 880.0),
        ("optimizer", ""): (0.0, 0.0, 10.0),
        ("other", ""): (0.0, 0.0, pytest.approx(2 / 7)),
    }
    assert [cost.part for cost in costs[:2]] == ["head", "attention"]
    assert costs[0].bound.seconds == pytest.approx(4e12 / 989.5e12)
    assert costs[0].bound.limit == "compute"
    assert costs[-1].bound.limit == "memory bandwidth"
    total = total_cost(costs, device_of("NVIDIA H200"), "float32")
    assert (total.seconds, total.flops) == (11.5, 9e12)
    assert total.bound.compute == pytest.approx(9e12 / 494.5e12)
    assert total.bound.memory == pytest.approx((7890 + 2 / 7) / 4.8e12)


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100 NVL"])
def test_a_device_without_published_figures_has_no_bound(kind):
    costs = part_costs(KERNELS, {}, {}, (7, 7), 1, device_of(kind), "float32")
    assert all(cost.bound is None for cost in costs)


def plane(name, lines, stats=()):
    """A plane of a trace as text: lines by name, each with events (name, microseconds, facts)."""
    names = sorted({event for events in lines.values() for event, _, _ in events})
    keys = sorted({key for events in lines.values() for _, _, facts in events for key in facts})
    text = [f'name: "{name}"']
    for line, events in lines.items():
        text.append(f'lines {{ name: "{line}"')
        for event, microseconds, facts in events:
            text.append(f"events {{ metadata_id: {names.index(event) + 1} duration_ps: {microseconds * 10**6}")
            for key, value in facts.items():
                kind = f'str_value: "{value}"' if isinstance(value, str) else f"int64_value: {value}"
                text.append(f"stats {{ metadata_id: {keys.index(key) + 1} {kind} }}")
            text.append("}")
        text.append("}")
    for table, entries in (("event_metadata", names), ("stat_metadata", keys)):
        for number, entry in enumerate(entries, start=1):
            text.append(f'{table} {{ key: {number} value {{ id: {number} name: "{entry}" }} }}')
    return "planes { " + "\n".join(text) + " }"


def op(name, module="jit_step", **facts):
    return {"hlo_op": name, "hlo_module": module, **facts}


TRACES = {
    "of a CPU": plane(
        "/host:CPU",
        {
            "thread/1": [
                ("dot.3", 5, op("dot.3", device_ordinal=0)),
                ("Execute", 90, {}),
                ("dot.3", 9, op("dot.3", "jit_evaluate", device_ordinal=0)),
            ],
            "thread/2": [
                ("dot.3", 2, op("dot.3", device_ordinal=1)),
                ("add.4", 1, op("add.4", device_ordinal=0)),
                ("dot.3", 50, op("dot.3", device_ordinal=5)),
            ],
        },
    ),
    "of a GPU": plane(
        "/device:GPU:0",
        {
            "Stream #13": [("gemm_kernel", 4, op("dot.3")), ("MemcpyD2D", 70, op("copy", "jit_evaluate"))],
            "Stream #14": [("add_kernel", 1, op("add.4", "jit_step(7)"))],
        },
    )
    + plane("/device:GPU:1", {"Stream #13": [("gemm_kernel", 3, op("dot.3"))]})
    + plane("/device:GPU:5", {"Stream #13": [("gemm_kernel", 50, op("dot.3"))]})
    + plane("/host:CPU", {"python": [("dot.3", 80, {})]}),
    "of a GPU with a line of instructions": plane(
        "/device:GPU:0",
        {
            "XLA Ops": [("dot.3", 7, op("dot.3")), ("add.4", 1, op("add.4"))],
            "Stream #13": [("gemm_kernel", 7, op("dot.3"))],
        },
    ),
    "of a TPU": plane(
        "/device:TPU:0",
        {
            "Steps": [("7", 60, {})],
            "XLA Ops": [("%dot.3 = f32[2]{0} dot(%a, %b)", 7, {}), ("%add.4 = f32[2]{0} add(%a, %b)", 1, {})],
        },
    ),
}


@pytest.mark.parametrize("kind", TRACES)
def test_the_time_of_instructions_is_read_from_a_trace(tmp_path, kind):
    (tmp_path / "host.xplane.pb").write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace(TRACES[kind]))
    (tmp_path / "host.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    assert instruction_seconds(tmp_path, "jit_step", [0, 1]) == pytest.approx({"dot.3": 7e-6, "add.4": 1e-6})
