"""Collectives in the text of compiled programs, in the forms in which XLA writes them for GPUs and TPUs."""

# ruff: noqa: E501  # lines of programs

import pytest

from flaxformer.targets.collectives import Collective, collectives_of

GPU = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%body (carry: (s32[], bf16[96,256])) -> (s32[], bf16[96,256]) {
  %start = (bf16[96,256]{1,0}, bf16[768,256]{1,0}) all-gather-start(%weight), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %done = bf16[768,256]{1,0} all-gather-done(%start)
  %scatter = f32[96,256]{1,0} reduce-scatter(%gradient), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
}

%condition (carry: (s32[], bf16[96,256])) -> pred[] {
  %bound = s32[] constant(12)
  ROOT %less = pred[] compare(%index, %bound), direction=LT
}

ENTRY %main (p: f32[10]) -> f32[10] {
  %loop = (s32[], bf16[96,256]{1,0}) while(%init), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %total = (f32[50304,768]{1,0}, f32[768]{0}) all-reduce-start(%a, %b), channel_id=3, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  %end = (f32[50304,768]{1,0}, f32[768]{0}) all-reduce-done(%total)
  %moved = s8[7]{0} collective-permute(%c), channel_id=4, source_target_pairs={{0,1},{1,0}}
}
"""


def test_collectives_are_counted_in_loops_with_their_groups_and_bytes():
    found = {own.name: own for own in collectives_of(GPU, 8) if own.shape != (768,)}
    gather, scatter = found["all-gather"], found["reduce-scatter"]
    assert gather == Collective("all-gather", "bf16", (768, 256), 8, 12)
    assert gather.bytes == 768 * 256 * 2
    assert gather.sent_bytes == 12 * 768 * 256 * 2 * 7 / 8
    assert scatter == Collective("reduce-scatter", "f32", (768, 256), 8, 12)
    reduce = found["all-reduce"]
    assert reduce == Collective("all-reduce", "f32", (50304, 768), 2, 1)
    assert reduce.sent_bytes == 50304 * 768 * 4
    assert found["collective-permute"].sent_bytes == 7
    assert str(gather) == "all-gather bf16[768,256]"


def test_those_that_send_most_come_first():
    assert [own.name for own in collectives_of(GPU, 8)] == [
        "all-reduce", "all-gather", "reduce-scatter", "all-reduce", "collective-permute"
    ] or [own.sent_bytes for own in collectives_of(GPU, 8)] == sorted(
        (own.sent_bytes for own in collectives_of(GPU, 8)), reverse=True
    )  # fmt: skip


def test_collectives_of_one_channel_count_each_on_a_gpu():
    lines = ["  %a = f32[11,13]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1}}, to_apply=%add"] * 2
    lines += ["  %b = f32[17]{0} all-reduce-start(%y), channel_id=1, replica_groups={{0,1}}, to_apply=%add"]
    text = "\n".join(["HloModule jit_step", "", "ENTRY %main (p: f32[1]) -> f32[1] {", *lines, "}"])
    assert collectives_of(text, 2) == [
        Collective("all-reduce", "f32", (11, 13), 2, 2), Collective("all-reduce", "f32", (17,), 2, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "bound", "count", "is_known"),
    [
        ('{"known_trip_count":{"n":"5"}}', "constant(12)", 5, True),
        ("{}", "constant(12)", 12, True),
        ("{}", "get-tuple-element(%carry), index=1", 1, False),
    ],
)
def test_a_loop_runs_as_often_as_its_text_says(config, bound, count, is_known):
    text = GPU.replace('{"known_trip_count":{"n":"12"}}', config).replace("constant(12)", bound)
    gather = next(own for own in collectives_of(text, 8) if own.name == "all-gather")
    assert (gather.count, gather.is_known) == (count, is_known)


TPU = """HloModule jit_step

%fused_start (p: bf16[32,64]) -> bf16[256,64] {
  %one = bf16[256,64]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=11, replica_groups=mesh['axis_0'=4, 'axis_1'=2] {'axis_0'}, dimensions={0}
}

%fused_step (p: bf16[32,64]) -> bf16[256,64] {
  %two = bf16[256,64]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=11, replica_groups=mesh['axis_0'=4, 'axis_1'=2] {'axis_0'}, dimensions={0}
}

%all-reduce-scatter.1 (p: f32[256,64]) -> f32[32,64] {
  %sum = f32[256,64]{1,0:T(8,128)} all-reduce(%p), channel_id=12, replica_groups=mesh['axis_0'=4, 'axis_1'=2] {'axis_0','axis_1'}, to_apply=%add
  ROOT %own = f32[32,64]{1,0} dynamic-slice(%sum, %place, %zero), dynamic_slice_sizes={32,64}
}

ENTRY %main (p: f32[10]) -> f32[10] {
  %a = bf16[256,64]{1,0} fusion(%w), kind=kCustom, calls=%fused_start
  %b = bf16[256,64]{1,0} fusion(%w), kind=kCustom, calls=%fused_step
  %c = f32[32,64]{1,0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_parts_of_an_asynchronous_collective_of_a_tpu_count_once():
    assert collectives_of(TPU, 8) == [
        Collective("reduce-scatter", "f32", (256, 64), 8, 1),
        Collective("all-gather", "bf16", (256, 64), 4, 1),
    ]
