"""flp.parallel on processes of this machine (gloo): against float64 and one process, what is sent, what is refused."""
import weakref
from pathlib import Path

import numpy
import pytest
import torch

import flp
import transcripts
import flp_parallel_cases as cases
from flp._library import _c
from flp._passes import _run
from flp.parallel import _call, _group
from flp_cases import LINEAR, LOSSES, PAIRS, SHARE, differences, sharded
from flp_keeping import parallel_call
from flp_kept_sets import lists
from flp_reference import GRAD_TOLERANCE, VALUE_TOLERANCE, doubles, problem, reference, relative

EVEN, UNEVEN = [(166, 166), (165, 165)], [(120, 120), (130, 128), (90, 83)]
ALONE, FOUR = [(330, 330), (1, 1)], [(96, 90), (96, 96), (96, 96), (96, 49)]
EMPTY = [(200, 200), (140, 131), (64, 0)]
MADE = {"n": 12, "bias": True}
REFUSED = Path(__file__).resolve().parents[1] / "golden/refused/ranks/parallel.txt"


def wanted(made, options, entropy=True, edit=None, targets=None):
    """logprob, entropy and gradients of hidden, weight and bias in float64."""
    hidden, weight, target, bias = problem(**made)
    if edit is not None:
        edit(hidden, weight, target)
    wide = doubles(hidden, weight, bias)
    known = {name: options[name] for name in ("temperature", "softcap", "scale", "rows", "keep") if name in options}
    logprob, entropies = reference(wide[0], wide[1], target if targets is None else targets, wide[2], **known)
    g, e = cases.upstream(target.shape[0])
    g = g if targets is None else g[:, None]
    ((logprob * g).sum() + ((entropies * e).sum() if entropy else 0)).backward()
    return logprob.detach(), entropies.detach(), [None if tensor is None else tensor.grad for tensor in wide]


SHARDED = (1, 2, 4)  # of the gradients of hidden, weight, bias, a and b


def check(results, cuts, want, dtype=torch.float32, sequence=False, near=VALUE_TOLERANCE, bound=None):
    """near, bound: of values and of gradients, where they are other than of the dtype"""
    logprob, entropies, grads = want
    for rank, (result, (rows, real)) in enumerate(zip(results, cuts)):
        assert torch.allclose(result["logprob"].double(), logprob.double(), atol=near, rtol=0)
        if result["entropy"] is not None:
            assert torch.allclose(result["entropy"].double(), entropies.double(), atol=near, rtol=0)
        first, n = sum(cut[1] for cut in cuts[:rank]), logprob.shape[0] // len(cuts)
        for place, (got, part) in enumerate(zip(result["grads"], grads)):
            if got is not None:
                part = part[rank * n:(rank + 1) * n] if sequence and place == 0 else part
                if place in SHARDED:
                    assert got.shape[0] == rows and not got[real:].any()
                    got, part = got[:real], part[first:first + real]
                assert relative(got, part) < (bound or GRAD_TOLERANCE[dtype]), (place, rank)


OVER_RANKS = [row for row in map(sharded, [*LINEAR, *LOSSES]) if row]


@pytest.mark.first(24)
@pytest.mark.parametrize("place, row", enumerate(OVER_RANKS), ids=str)
def test_row(ranks, place, row):
    """Rows of flp_cases.py over two ranks or three, whose hidden states are divided too where that can be."""
    over_ranks(ranks, place, row, 3, merge=("sum", "gather")[place // 4 % 2])


@pytest.mark.first(16)
@pytest.mark.parametrize("place, row", enumerate(row for row in map(sharded, PAIRS[::2]) if row), ids=str)
def test_row_of_two_heads(ranks, place, row):
    over_ranks(ranks, place, row, True)


def over_ranks(ranks, place, row, sequence, **options):
    cuts = EVEN if "grad_weight_accumulate" in row.options else (EVEN, UNEVEN, ALONE, EMPTY)[place % 4]
    is_divided = len(cuts) == 3 and row.few is None and row.lead is None and "lora" not in row.options \
        and torch.bfloat16 not in (row.hidden_dtype, row.dtype)  # which gloo does not gather

    def form(row):
        found, *others = ranks.run(len(cuts), cases.row, row=row, cuts=cuts, sequence=is_divided and sequence,
                                   engine=("libflp", "torch form")["lora" not in row.options and place % 3 == 0],
                                   **options)
        for outputs, _ in others:
            assert all(torch.equal(value.nan_to_num(7), found[0][name][0].nan_to_num(7))
                       for name, (value, _) in outputs.items()), "ranks differ"
        gradients = dict(found[1])
        for name in ("weight", "bias", "b", "buffer", *(("hidden",) if is_divided else ())):
            if gradients.get(name) is not None:
                rest = float(name == "buffer")
                gradients[name] = sum(each[1][name] - rest for each in (found, *others)) + rest
        outputs = {name: value.requires_grad_() if has else value for name, (value, has) in found[0].items()}
        return outputs, gradients, None

    assert differences(row, SHARE, form) == []


def spoil_rows(hidden, weight, target):
    """Rows that are masked, bad, and no number."""
    target[1], target[4], hidden[6, 0] = -100, weight.shape[0], float("nan")


@pytest.mark.parametrize("engine", ["libflp", "torch form"])
@pytest.mark.parametrize("sequence", [False, True, 2])
@pytest.mark.parametrize("cuts, options", [
    (EVEN, {"temperature": 0.8, "topk": 20}), (EVEN, {"entropy": True, "topk": 3, "merge": "gather"}),
    ([(300, 300), (31, 31)], {"topk": 100}), ([(331, 331), (64, 0)], {"topk": 7})], ids=str)
def test_best_tokens_of_all_ranks(ranks, engine, sequence, cuts, options):
    made = dict(MADE, target_dtype=torch.int32)
    results = ranks.run(2, cases.head, cuts=cuts, made=made, options={**options, "rank": True}, sequence=sequence,
                        engine=engine, edit=spoil_rows, needs=("hidden",), entropy=options.get("entropy", False))
    hidden, weight, target, bias = problem(**made)
    spoil_rows(hidden, weight, target)
    known = {"temperature": options.get("temperature", 1.0), "topk": options["topk"]}
    logprob, top, rank = flp.linear_logprob(hidden, weight, target, bias, rank=True, **known)
    for result in results:
        (ids, logprobs, rest), above = result["best"]
        assert torch.equal(above, rank)
        assert torch.allclose(result["logprob"], logprob, atol=VALUE_TOLERANCE, rtol=0, equal_nan=True)
        assert torch.equal(ids, top.ids) and ids.dtype is torch.int32
        assert torch.allclose(logprobs, top.logprobs, atol=VALUE_TOLERANCE, rtol=0, equal_nan=True)
        assert torch.allclose(rest, top.rest, atol=VALUE_TOLERANCE, rtol=0, equal_nan=True)
        assert result["grads"][0].shape[0] == 12 // (2 if sequence else 1)
    with pytest.raises(flp.DataError):
        flp.check()


def test_a_gather_gives_the_bits_of_partials_in_rank_order(ranks):
    results = ranks.run(3, cases.head, cuts=UNEVEN, made=MADE, options={"merge": "gather"})
    hidden, weight, target, bias = problem(**MADE)
    parts = [flp.linear_logprob_partial(
        hidden, cases.shard(weight, rank, UNEVEN), target, cases.shard(bias, rank, UNEVEN), vocab_total=331,
        vocab_offset=sum(cut[1] for cut in UNEVEN[:rank]), vocab_valid=UNEVEN[rank][1], entropy=True)
        for rank in range(3)]
    logprob, entropies, _ = flp.combine_partials(parts, target, vocab_total=331, entropy=True)
    assert torch.equal(results[2]["logprob"], logprob) and torch.equal(results[2]["entropy"], entropies)


F32 = torch.float32


@pytest.mark.parametrize("merge, entropy, sent", [
    ("sum", False, [("all_reduce", "MAX", (12,), F32), ("all_reduce", "SUM", (2, 12), F32)]),
    ("sum", True, [("all_reduce", "MAX", (12,), F32), ("all_reduce", "SUM", (3, 12), F32)]),
    ("gather", True, [("all_gather", None, (12, 4), F32)])])
def test_what_is_sent(ranks, merge, entropy, sent):
    made = {**MADE, "dtype": torch.float16}
    for dtype in (torch.float32, None):
        results = ranks.run(2, cases.head, cuts=EVEN, made=made, entropy=entropy,
                            options={"merge": merge, "reduce_dtype": dtype})
        name = dtype or torch.float16
        for result in results:
            assert result["forward"] == sent and result["backward"] == [("all_reduce", "SUM", (12, 64), name)]


@pytest.mark.parametrize("needs, options", [(("weight", "bias"), {}), ((), {}),
                                            (("hidden", "weight"), {"reduce_grad_hidden": False})])
def test_no_gradient_of_hidden_is_sent_unasked(ranks, needs, options):
    results = ranks.run(2, cases.head, cuts=EVEN, made=MADE, options=options, needs=needs)
    _, _, grads = wanted(MADE, {})
    for result in results:
        assert result["backward"] == []
        given = [name for name, grad in zip(("hidden", "weight", "bias"), result["grads"]) if grad is not None]
        assert given == list(needs)
    if "hidden" in needs:
        assert relative(results[0]["grads"][0] + results[1]["grads"][0], grads[0]) < 5e-6
        assert relative(results[0]["grads"][0], grads[0]) > 0.1


def spoil_weight(hidden, weight, target):
    """A NaN in the last shard only."""
    weight[330, 0] = float("nan")


@pytest.mark.parametrize("merge", ["sum", "gather"])
def test_a_nan_of_one_rank_reaches_all(ranks, merge):
    for result in ranks.run(3, cases.head, cuts=UNEVEN, made=MADE, options={"merge": merge}, edit=spoil_weight):
        assert result["logprob"].isnan().all() and result["entropy"].isnan().all()


@pytest.mark.parametrize("sequence", [False, True, 3])
def test_no_rows(ranks, sequence):
    for result in ranks.run(2, cases.head, cuts=EVEN, made={**MADE, "n": 0}, options={}, sequence=sequence):
        assert result["logprob"].shape == (0,) and result["forward"] == [] and result["backward"] == []
        assert result["grads"][0].shape == (0, 64) and not result["grads"][1].any() and not result["grads"][2].any()


@pytest.mark.parametrize("cuts, chunk, made, options", [
    (EVEN, 4, {}, {"temperature": torch.linspace(0.5, 2.0, 12)}), (UNEVEN, 3, {}, {"merge": "gather"}),
    (EMPTY, 3, {"dtype": torch.float16}, {}), (EVEN, True, {}, {"softcap": 3.0})],
    ids=["tail", "three", "empty", "whole"])
def test_sequence_parallel(ranks, cuts, chunk, made, options):
    made = {**MADE, **made}
    results = ranks.run(len(cuts), cases.head, cuts=cuts, made=made, options=options, sequence=chunk)
    check(results, cuts, wanted(made, options), made.get("dtype", torch.float32), sequence=True)
    rows = 12 // len(cuts)
    chunks = [min(chunk, rows - begin) for begin in range(0, rows, chunk)] if chunk is not True else [rows]
    gathers = [kind[2] for kind in results[0]["forward"] if kind[3] is made.get("dtype", torch.float32)
               and kind[0] == "all_gather" and kind[2][1] == 64]
    assert gathers == [(count, 64) for count in chunks]
    assert len(results[0]["forward"]) == len(chunks) + (1 if "merge" in options else 2)


class CountingGroup(_group.Group):
    """Two ranks that are the same; `most` gathers of hidden states were alive at once."""

    def __init__(self):
        self.handle, self.size, self.rank = None, 2, 0
        self.alive, self.most = [], 0

    def gather_later(self, tensor):
        gathered = numpy.stack([tensor.detach().numpy()] * 2)
        if tensor.shape[1] == 64:
            self.alive.append(None)
            weakref.finalize(gathered, self.alive.pop)
            self.most = max(self.most, len(self.alive))
        out = torch.from_numpy(gathered)
        return lambda: out

    def scatter_total(self, tensor):
        return tensor[:tensor.shape[0] // 2]


def test_two_chunks_of_hidden_states_are_alive_at_a_time():
    hidden, weight, target = (tensor.cpu() for tensor in problem(n=12)[:3])
    call = parallel_call(chunk=2, valid=weight.shape[0])
    call.group, call.merge, call.reduce_dtype = CountingGroup(), "gather", torch.float32
    logprob = _call.ParallelLogprob.apply(hidden.requires_grad_(), weight.requires_grad_(), None, target.repeat(2),
                                          *[None] * 6, call, _c.GRAD_HIDDEN | _c.GRAD_WEIGHT)
    assert call.group.most == 2 and not call.group.alive
    call.group.most = 0
    logprob.sum().backward()
    assert call.group.most == 2 and not call.group.alive and hidden.grad.shape == hidden.shape


@pytest.mark.parametrize("sequence", [False, 4])
def test_the_weights_gradient_is_added_to_a_buffer(ranks, sequence):
    results = ranks.run(2, cases.head, cuts=EVEN, made=MADE, options={}, sequence=sequence, accumulate=True)
    whole = torch.cat([result["buffer"] for result in results]) - 1
    assert relative(whole, wanted(MADE, {})[2][1]) < 5e-6
    assert all(result["grads"][1] is None for result in results)


@pytest.mark.parametrize("sequence", [False, 4])
def test_a_frozen_head_with_an_entropy_of_no_gradient(ranks, sequence):
    made = {"n": 12, "dtype": torch.float16}
    results = ranks.run(3, cases.head, cuts=UNEVEN, made=made, options={}, sequence=sequence, needs=("hidden",),
                        entropy="detached")
    check(results, UNEVEN, wanted(made, {}, entropy=False), torch.float16, sequence=bool(sequence))
    assert all(result["grads"][1] is None for result in results)


@pytest.mark.parametrize("cuts, place", [
    (UNEVEN[:1] + [(128, 128), (83, 83)], {}), ([(120, 120), (120, 120), (120, 91)], {"vocab_total": 331}),
    ([(200, 200), (200, 131), (200, 0)], {"vocab_total": 331})], ids=["sizes", "padded", "padding"])
def test_the_place_of_a_shard_is_found_once(ranks, cuts, place):
    logprob = wanted({}, {})[0]
    for got, sent in ranks.run(3, cases.twice, cuts=cuts, made={}, options=place):
        assert torch.allclose(got.double(), logprob, atol=VALUE_TOLERANCE)
        assert sent[0] == [("all_gather", None, (3,), torch.int64), *sent[1]]
        assert [kind[1] for kind in sent[1]] == ["MAX", "SUM"]


def test_wrong_arguments_are_refused_on_every_rank(ranks):
    def ask(options):
        answers = ranks.run(2, cases.refusal, cuts=EVEN, made={}, options=eval(f"dict({options})"))
        said, = {message for _, message in answers}
        return [said]

    transcripts.check(REFUSED, None, ask)


@pytest.mark.parametrize("engine", ["libflp", "torch form"])
@pytest.mark.parametrize("sequence, place, accumulate", [(False, True, False), (True, False, True), (4, True, True)], ids=str)
@pytest.mark.parametrize("cuts", [[(1, 1), (330, 330)], [(200, 200), (1, 1), (130, 130)], [(1, 1), (331, 330), (1, 0)], [(331, 331), (0, 0)]], ids=str)
def test_a_shard_of_one_row(ranks, engine, sequence, place, accumulate, cuts):
    options = {"temperature": 0.8}
    want = wanted(MADE, options)
    if not place and any(rows != real for rows, real in cuts):
        options["vocab_total"] = 331
    results = ranks.run(len(cuts), cases.head, cuts=cuts, made=MADE, options=options, sequence=sequence, place=place,
                        accumulate=accumulate, engine=engine)
    if accumulate:
        first = 0
        for (rows, real), result in zip(cuts, results):
            assert result["grads"][1] is None
            part = want[2][1][first:first + real].float()
            torch.testing.assert_close(result["buffer"][:real] - 1, part, atol=1e-6, rtol=1e-5)
            first += real
    check(results, cuts, want, sequence=sequence)


def test_what_one_rank_refuses_all_refuse_where_sizes_are_gathered(ranks):
    for _ in range(2):
        answers = ranks.run(3, cases.refusal, cuts=UNEVEN, made={}, options={}, spoiled=1)
        assert [answer[0] for answer in answers] == ["ValueError", "TypeError", "ValueError"]
        assert answers[1][1].startswith("weight_shard is of dtype torch.int8")
        assert {answers[0][1], answers[2][1]} == {
            "weight_shard is part of a call that rank 1 of the group refuses (accepted: a call that every rank takes; that one "
            "says why it does not)"}


@pytest.mark.parametrize("options, says", [
    ({"vocab_offset": 0, "vocab_valid": 167, "vocab_total": 331},
     "vocab_valid is 167 (accepted: at most {0}, the rows of the shard)"),
    ({"bias_shard": torch.zeros(5)}, "bias_shard is of shape (5,) (accepted: ({0},), as weight_shard has {0} rows)")],
    ids=["valid", "bias"])
def test_each_rank_names_the_rows_of_its_shard(ranks, options, says):
    answers = ranks.run(2, cases.refusal, cuts=EVEN, made={}, options=options)
    assert [answer[1] for answer in answers] == [says.format(rows) for rows, _ in EVEN]


def test_values_that_are_elsewhere(ranks):
    hidden, weight, target, _ = problem()
    weight.requires_grad_()
    (whole,) = torch.autograd.grad(flp.linear_logprob(hidden, weight, target).sum(), [weight])
    want = wanted({}, {}, entropy=False)
    for rank, (message, logprob, grad, entered) in enumerate(ranks.run(2, cases.zero3, cuts=EVEN, made={})):
        assert message.startswith("weight_shard is a ZeRO-3 parameter that is partitioned (accepted: a gathered one")
        assert torch.allclose(logprob.double(), want[0], atol=VALUE_TOLERANCE) and entered == 2
        assert torch.allclose(grad, whole[166 * rank:166 * (rank + 1)], atol=1e-6)
    for messages in ranks.run(2, cases.freed, cuts=EVEN, made={}):
        assert len(messages) == 2 and all("between module.unshard() and" in message for message in messages)


def test_there_is_no_second_derivative(ranks):
    for message in ranks.run(2, cases.second_derivative, cuts=EVEN, made={}):
        assert message == _run.NO_SECOND_DERIVATIVE


def test_a_world_is_needed():
    hidden, weight, target, _ = problem()
    with pytest.raises(ValueError, match="^group is None while torch.distributed is not initialised"):
        flp.parallel.linear_logprob(hidden, weight, target)


needs_dtensor = pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6),
                                   reason="DTensor and FSDP2 as they are tested here came with torch 2.6")


@needs_dtensor
@pytest.mark.parametrize("placements, shape, axis, sends", [("0", (4,), 0, 2), ("r", (4,), 0, 0), ("r0", (2, 2), 1, 2)])
def test_dtensors(ranks, placements, shape, axis, sends):
    made = {**MADE, "vocab": 330}
    logprob, entropies, grads = wanted(made, {})
    for result in ranks.run(4, cases.dtensor_head, placements=placements, shape=shape, axis=axis, made=made):
        assert torch.allclose(result["logprob"].double(), logprob, atol=VALUE_TOLERANCE)
        assert torch.allclose(result["entropy"].double(), entropies, atol=VALUE_TOLERANCE)
        assert all(relative(got, want) < 5e-6 for got, want in zip(result["grads"], grads))
        assert len(result["sent"]) == sends


@needs_dtensor
@pytest.mark.parametrize("placements, axis", [("00", 1), ("0r", 1)])
def test_dtensors_that_are_sharded_elsewhere(ranks, placements, axis):
    for message in ranks.run(4, cases.dtensor_head, placements=placements, shape=(2, 2), axis=axis, made=MADE):
        assert message.startswith("weight_shard is a DTensor of placements (") and "module.unshard()" in message


@needs_dtensor
@pytest.mark.parametrize("reshard, distributed", [(False, False), (True, False), (True, True)])
def test_a_head_under_fsdp(ranks, reshard, distributed):
    logprob, _, grads = wanted(MADE, {}, entropy=False)
    for rank, (refused, opened, got, grad) in enumerate(ranks.run(4, cases.fsdp, made=MADE, reshard=reshard,
                                                                  distributed=distributed)):
        assert refused.startswith("weight_shard is a DTensor of placements (")
        assert torch.allclose(opened.double(), logprob, atol=VALUE_TOLERANCE) and torch.equal(opened, got)
        part = slice(None) if distributed else slice(0, 166) if rank % 2 == 0 else slice(166, 331)
        assert relative(grad, grads[1][part]) < 5e-6
