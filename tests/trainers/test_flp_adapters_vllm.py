"""The adapter of vLLM on a stand-in: values, ranks, the rows asked for, each reason to decline, the entry point."""
import dataclasses
import logging
import os
import subprocess
import sys
import types

import flp_plugins
import flp_vllm
import numpy as np
import pytest
import torch
from flp_reference import DEVICE, problem, reference, rounds_by_place
from flp_vllm import Model, divided, part, step

import flp
from flp.adapters import vllm
from test_flp_adapters import agrees, counted, hosts  # noqa: F401

V, PADDED = 300, 331
V1, V2 = "vllm.v1.worker.gpu_model_runner.GPUModelRunner.", "vllm.v1.worker.gpu.model_runner.GPUModelRunner."
PROMPTS = "vllm.v1.worker.gpu.sample.prompt_logprob.PromptLogprobsWorker."
LENS, DONE, COUNT = [9, 50, 20, 7], [0, 10, 25, 0], [9, 6, 1, 7]  # whole, a chunk of one, decoding, asks for nothing
ASKED = list(range(8)) + list(range(9, 15))


@pytest.fixture
def engine(hosts, monkeypatch):  # noqa: F811
    """flp in the stand-in; what FLP_VLLM names is in the parameter of the test, if it has one."""
    hosts("vllm")
    monkeypatch.delenv("FLP_VLLM", raising=False)
    flp.install("vllm", untested=True)


def made(n=23, **options):
    """(hidden, weight of more rows than there are tokens, tokens, bias); the rows that pad it have the best scores."""
    hidden, weight, tokens, bias = problem(n, PADDED, **options)
    weight[V:] *= 9
    return hidden, weight, tokens % V, bias


def exact(hidden, weight, **options):
    """The scores (N, V) that count, in float64."""
    scores = hidden.double() @ weight[:V].double().t() + (0 if options.get("bias") is None else options["bias"][:V])
    cap, scale = options.get("soft_cap"), options.get("scale", 1.0)
    return scale * (cap * torch.tanh(scores / cap) if cap else scores)


def is_exact(found, scores, tokens, k):
    """As vLLM has them: the target, then the best k; ranks count from 1, tokens of the same score as the target too."""
    ids, values, ranks = found[:3]
    logp = scores.log_softmax(-1)
    assert ids.shape == values.shape == (len(tokens), 1 + k) and torch.equal(ids[:, 0].long(), tokens)
    assert torch.equal(ids[:, 1:].long(), scores.topk(k).indices)
    agrees(values, logp.gather(1, ids.long()))
    same = ids == ids[:, :1]
    assert torch.equal(values[same], values[:, :1].expand_as(values)[same])
    assert ranks.dtype is torch.int64
    assert torch.equal(ranks, (scores >= scores.gather(1, tokens.unsqueeze(1))).sum(1))


LAYERS = [{}, {"soft_cap": 3.0}, {"scale": 0.4}, {"soft_cap": 3.0, "scale": 0.4}]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("k", [0, 1, 20])
def test_prompts_of_runner_v2_in_one_call_of_the_rows_that_were_asked_for(engine, k, layer):
    hidden, weight, tokens, bias = made(bias=True)
    worker, batch, lens = step([True, True, True, False], [k, 0, 0, -1], LENS, DONE, COUNT)
    ids = tokens.clone()
    ids[[at for at in range(23) if at not in ASKED]] = 10**6  # a row that is scored with it is counted
    (found,) = worker.compute_prompt_logprobs(Model(weight, V, bias, **layer).compute_logits, hidden, batch, ids, None,
                                              lens)
    scores = exact(hidden, weight, bias=bias, **layer)
    is_exact([part[ASKED] for part in found[:3]], scores[ASKED], tokens[ASKED], k)
    flp.check()
    assert counted("vllm", PROMPTS + "compute_prompt_logprobs") == ({"score": 1}, {})
    assert part("v1.worker.gpu.sample.prompt_logprob").CHUNK_SIZE == 4


def test_prompts_that_need_no_row_of_a_step(engine):
    """Of a prompt of one token there is none, and vLLM drops what it is given."""
    hidden, weight, tokens, _ = made(3)
    worker, batch, lens = step([True, False], [2, 0], [1, 2], [0, 0], [1, 2])
    (found,) = worker.compute_prompt_logprobs(Model(weight, V).compute_logits, hidden, batch, tokens, None, lens)
    assert found[1].shape == (3, 3)


@pytest.mark.parametrize("k", [1, 16, 600])
def test_ids_a_position(engine, k):
    """600 ids take two calls of flp; ids of -1 are -inf, and no row's other values change with them."""
    hidden, weight, _, _ = made(10)
    ids = torch.randint(V, (10, k), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    ids[3, k // 2] = ids[5, -1] = -1
    ids[7] = -1
    worker, batch, lens = step([False], [0], [11], [0], [10])
    worker.token_id_scores = {"a": ids}
    compute = Model(weight, V).compute_logits
    ((found,),) = worker.compute_prompt_token_id_logprobs(compute, hidden, batch, lens).values()
    pad = ids < 0
    want = exact(hidden, weight).log_softmax(-1).gather(1, ids.clamp(min=0)).masked_fill(pad, -float("inf"))
    assert torch.equal(found == -float("inf"), pad)
    agrees(found[~pad], want[~pad])
    flp.check()


def runner_v1(model, rows=range(23), **asked):
    metadata = types.SimpleNamespace(**{"max_num_logprobs": 2, "logprob_token_ids": None, **asked})
    config = types.SimpleNamespace(max_logprobs=20)
    return part("v1.worker.gpu_model_runner").GPUModelRunner(
        model=model, model_config=config, max_num_tokens=40, num_prompt_logprobs={}, input_batch=types.SimpleNamespace(
            sampling_metadata=metadata, num_logprobs=dict.fromkeys(rows, 2), req_id_to_index=range(23)))


def runner_v2(model, tokens, dims=(2, 0), rows=range(23)):
    asked = np.full(23, -1)
    asked[list(rows)] = 2
    return part("v1.worker.gpu.model_runner").GPUModelRunner(
        model=model, tokens=tokens, dims=dims, model_config=types.SimpleNamespace(max_logprobs=-1), max_num_tokens=40,
        states=types.SimpleNamespace(num_logprobs=asked))


def batch(drafts=0, n=23, requests=None):
    return types.SimpleNamespace(idx_mapping_np=np.arange(requests or n), num_draft_tokens=drafts,
                                 logits_indices=torch.arange(n, device=DEVICE))


def test_prompts_of_runner_v1(engine):
    hidden, weight, tokens, _ = made()
    runner = runner_v1(Model(weight, V))
    runner.rows = {"a": slice(0, 9), "b": slice(9, 23)}
    runner.tokens = {name: tokens[rows] for name, rows in runner.rows.items()}
    runner.num_prompt_logprobs = {"a": 3, "b": 0}
    found = runner._get_prompt_logprobs_dict(hidden, {})
    for name, k in (("a", 3), ("b", 0)):
        is_exact(found[name], exact(hidden, weight)[runner.rows[name]], runner.tokens[name], k)
        assert found[name].logprob_token_ids.dtype is torch.int32


def sampled_by(runner, model, hidden, tokens, grammar=None, rows=None):
    """What a runner reports of tokens that it samples, where requests ask for those of rows (None: all)."""
    rows = range(len(hidden)) if rows is None else rows
    if runner == "v2":
        return runner_v2(model, tokens, rows=rows).sample(hidden, batch(n=len(hidden)), grammar)
    runner, logits = runner_v1(model, rows), model.compute_logits(hidden)
    runner.tokens = tokens
    if grammar:
        part("v1.worker.gpu_model_runner").apply_grammar_bitmask(None, grammar, None, logits)
    return runner._sample(logits, None)


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_sampled_tokens(engine, runner):
    hidden, weight, tokens, _ = made()
    model = Model(weight, V)
    found = sampled_by(runner, model, hidden, tokens)
    is_exact(found, exact(hidden, weight), tokens, 2)
    assert found.cu_num_generated_tokens == (None if runner == "v1" else [0, 23])
    steps = [sampled_by(runner, model, hidden[at:at + 3], tokens[at:at + 3]) for at in range(0, 23, 3)]
    whole = flp.linear_logprob(hidden, weight[:V], tokens)
    got = torch.cat([each.logprobs[:, 0] for each in steps])
    assert torch.equal(got, whole) or rounds_by_place() and torch.allclose(got, whole, atol=2e-5)
    rows, ids = [1, 4, 22], torch.full_like(tokens, 10**6)
    ids[rows] = tokens[rows]
    some = sampled_by(runner, model, hidden, ids, rows=rows)
    is_exact([part[rows] for part in some[:3]], exact(hidden, weight)[rows], tokens[rows], 2)
    flp.check()


class Quantised:
    pass


def change(owner, **fields):
    return lambda model: vars(getattr(model, owner)).update(fields)


REFUSED = [
    (change("lm_head", quant_method=Quantised()), "the head is quantised (Quantised)"),
    (change("lm_head", base_layer=None), "the head is in LoRA"),
    (change("layer", flp_mode="processed_logprobs"),
     "logprobs_mode is 'processed_logprobs' (accepted: 'raw_logprobs')"),
    (change("layer", flp_mode="raw_logits"), "logprobs_mode is 'raw_logits' (accepted: 'raw_logprobs')"),
    (change("layer", logits_as_input=True), "the layer is given scores"),
    (change("layer", head_dtype=torch.float16), "head_dtype is torch.float16 beside hidden states of torch.float32"),
    (change("layer", scale=-1.0), "the scale of scores is -1"),
    (change("layer", org_vocab_size=PADDED + 1), "the head has 331 tokens of 332"),
    (lambda model: setattr(model.lm_head, "weight", model.lm_head.weight.double()),
     "weight is of dtype torch.float64"),
    (change("lm_head", **divided(0, 2), weight=torch.ones(170, 32)), "the head's weight has shape (170, 32)"),
    (change("lm_head", **divided(0, 2, added=1)), "a head that is divided over ranks has added tokens"),
    (change("lm_head", **divided(0, 2)), "of a head that is divided over ranks one has padding alone"),
    (lambda model: (change("lm_head", **divided(0, 2))(model), change("layer", use_all_gather=False)(model)),
     "one rank alone gets the scores"),
    (change("model", after=lambda scores: scores * 2), "compute_logits does more than its head (TypeError)"),
    (change("model", after=lambda scores: scores.index_fill_(1, torch.tensor([3]), 0.0)),
     "compute_logits does more than its head (AttributeError)"),
    (lambda model: vars(model).update(layer=lambda head, hidden, bias: hidden @ head.weight[:V].t()),
     "compute_logits does more than its head, or was built before flp came"),
]


def refused_model(changed):
    hidden, weight, tokens, _ = made()
    model = Model(weight, V)
    model.model = model
    changed(model)
    if model.layer.__class__.__name__ == "FlpLogitsProcessor":  # what scores it would make is not what is asked here
        vars(model)["layer"] = Declining(model.layer)
    return model, hidden, tokens


class Declining:
    """A layer of flp's whose own scores are not computed where flp takes none."""

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, head, hidden, bias):
        if vllm._now.handing:
            return self.layer(head, hidden, bias)
        scores = hidden.new_zeros(len(hidden), V)
        scores._flp = vllm.Scores(self.layer, head, hidden, bias)
        return scores


@pytest.mark.parametrize("changed, reason", REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_what_stays_vllms_with_its_own_chunks(engine, logged, changed, reason):
    model, hidden, tokens = refused_model(changed)
    worker, of_step, lens = step([True], [2], [24], [0], [23])
    for _ in range(2):
        assert worker.compute_prompt_logprobs(model.compute_logits, hidden, of_step, tokens, None, lens) == ["host"] * 6
    assert counted("vllm", PROMPTS + "compute_prompt_logprobs") == ({}, {reason: 2})
    assert [level for level, text in logged if reason in text] == [logging.WARNING]
    if "compute_logits does more" not in reason:
        for runner, name in (("v1", V1 + "_sample"), ("v2", V2 + "sample")):
            assert sampled_by(runner, model, hidden, tokens) == "host"
            assert counted("vllm", name) == ({}, {reason: 1})
        assert runner_v1(model)._dummy_sampler_run(hidden) == (23, V)


def test_a_layer_in_lora_runs_vllms_forward(engine):
    """vLLM calls the forward of the layer that its own of LoRA wraps, with that as self."""
    hidden, weight, tokens, _ = made()
    model = Model(weight, V)
    forward = type(model.layer).forward
    wrapper = types.SimpleNamespace(org_vocab_size=V, soft_cap=None, scale=1.0, logits_as_input=False)
    model.layer = lambda head, states, bias: forward(wrapper, head, states, bias)
    worker, of_step, lens = step([True], [2], [24], [0], [23])
    assert worker.compute_prompt_logprobs(model.compute_logits, hidden, of_step, tokens, None, lens) == ["host"] * 6
    assert counted("vllm", PROMPTS + "compute_prompt_logprobs")[1] == {"the head is in LoRA": 1}


@pytest.mark.parametrize("head_dtype", [None, torch.bfloat16, torch.float32], ids=str)
def test_a_head_in_float32_takes_operands_of_16_bits(hosts, head_dtype):  # noqa: F811
    hosts("vllm")
    flp.install("vllm", untested=True)
    part("config").config.model_config = types.SimpleNamespace(logprobs_mode="raw_logprobs", head_dtype=head_dtype)
    hidden, weight, tokens, _ = made(dtype=torch.bfloat16)
    worker, of_step, lens = step([True], [0], [24], [0], [23])
    (found,) = worker.compute_prompt_logprobs(Model(weight, V).compute_logits, hidden, of_step, tokens, None, lens)
    agrees(found.logprobs[:, 0], reference(hidden, weight[:V], tokens)[0])


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_grammar_masks_scores_in_place(engine, runner):
    hidden, weight, tokens, _ = made()
    assert sampled_by(runner, Model(weight, V), hidden, tokens, grammar=object()) == "host"
    name = V1 + "_sample" if runner == "v1" else V2 + "sample"
    assert counted("vllm", name) == ({}, {vllm.MASKED: 1})


def test_sampled_tokens_that_stay_vllms(engine):
    hidden, weight, tokens, _ = made()
    model = Model(weight, V)
    logits = model.compute_logits(hidden)
    for asked, speculation, scores in (({}, object(), logits), ({"logprob_token_ids": {0: [1]}}, None, logits),
                                       ({"max_num_logprobs": -1}, None, logits), ({}, None, logits.clone())):
        runner = runner_v1(model, **asked)
        runner.tokens = tokens
        assert runner._sample(scores, speculation) == "host"
    runner = runner_v1(model, max_num_logprobs=None)
    assert runner._sample(logits, None) is True
    assert counted("vllm", V1 + "_sample")[1] == {reason: 1 for reason in (
        "drafts are verified", vllm.CUSTOM, "all best tokens a row are asked for (accepted: 0 to 128)",
        "these scores are not as a head that was built after flp came made them",
        "flp was asked for no log-probabilities")}
    for dims, field, drafts in (((2, 0), "rejection_sampler", 1), ((2, 0), "batch_sharder", 0), ((129, 0), "", 0),
                                ((0, 3), "", 0), (None, "", 0)):
        runner = runner_v2(model, tokens, dims)
        vars(runner)[field] = object()
        assert runner.sample(hidden, batch(drafts), None) == ("host" if dims else True)
    assert runner_v2(model, tokens).sample(hidden, batch(requests=20), None) == "host"
    assert counted("vllm", V2 + "sample") == ({}, {reason: 1 for reason in (
        "drafts are verified", vllm.CUSTOM, "129 best tokens a row are asked for (accepted: 0 to 128)",
        "sampling is divided over ranks by request", "a request has several rows",
        "flp was asked for no log-probabilities")})


@pytest.mark.parametrize("words, runs", [("prompt", {"prompt"}), (" sampled", {"sampled"}),
                                         ("prompt,sampled", {"prompt", "sampled"})])
def test_what_flp_vllm_names_is_taken(hosts, monkeypatch, words, runs):  # noqa: F811
    hosts("vllm")
    monkeypatch.setenv("FLP_VLLM", words)
    flp.install("vllm", untested=True)
    hidden, weight, tokens, _ = made()
    model = Model(weight, V)
    worker, of_step, lens = step([True], [2], [24], [0], [23])
    found = {"prompt": worker.compute_prompt_logprobs(model.compute_logits, hidden, of_step, tokens, None, lens)}
    found.update((runner, sampled_by(runner, model, hidden, tokens)) for runner in ("v1", "v2"))
    own = {"prompt": ["host"] * 6, "v1": "host", "v2": "host"}
    assert {"prompt" if name == "prompt" else "sampled" for name in own if found[name] != own[name]} == runs
    rows = {"prompt": 40, "sampled": 23}["prompt" if "prompt" in runs else "sampled"]
    asked = []

    def noting(hidden, **options):
        asked.append((len(hidden), options["topk"]))
        return flp.linear_logprob(hidden, **options)

    monkeypatch.setattr(vllm, "linear_logprob", noting)
    assert runner_v1(model)._dummy_sampler_run(hidden) == runner_v2(model, tokens)._dummy_sampler_run(hidden) == (23, V)
    assert asked == [(rows, 20), (rows, 128)]


def test_uninstall_leaves_vllm_and_layers_that_were_built(engine):
    hidden, weight, _, _ = made()
    model, registry = Model(weight, V), part("model_executor.custom_op").op_registry_oot
    assert hasattr(model.compute_logits(hidden), "_flp") and len(registry) == 1
    flp.uninstall("vllm")
    assert not hasattr(model.compute_logits(hidden), "_flp") and registry == {}
    flp.install("vllm", untested=True)
    registry["LogitsProcessor"] = int
    with pytest.raises(flp.HostError, match="op_registry_oot"):
        flp.uninstall("vllm")
    with pytest.raises(flp.HostError, match="int is registered for its layer LogitsProcessor already"):
        flp.install("vllm", untested=True)
    assert flp.installed() == {}


@pytest.mark.parametrize("text", ["prompts", "prompt,all", ","])
def test_another_word_is_refused(monkeypatch, text):
    monkeypatch.setenv("FLP_VLLM", text)
    accepted = "FLP_VLLM is '%s' .accepted: a comma list of prompt and sampled" % text
    with pytest.raises(flp.ArgumentError, match=accepted):
        flp_plugins.vllm()


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_changed_signature_is_declined_once_or_an_error(hosts, monkeypatch, logged, strict):  # noqa: F811
    changed = dict(flp_vllm.SOURCES)
    changed["vllm.v1.worker.gpu.sample.logprob"] = changed["vllm.v1.worker.gpu.sample.logprob"].replace(
        "(logits, token_ids)", "(logits, token_ids, more=None)")
    hosts("vllm", changed)
    monkeypatch.setattr(vllm, "HOST", of_any_text())
    monkeypatch.setenv("FLP_VLLM", "prompt"), monkeypatch.setenv("FLP_VLLM_STRICT", strict)
    message = "the parameters of vllm.v1.worker.gpu.sample.logprob.compute_token_logprobs are (logits, token_ids, more)"
    if strict == "1":
        with pytest.raises(flp.HostError) as refused:
            flp_plugins.vllm()
        assert message in str(refused.value)
    else:
        flp_plugins.vllm()
        assert [level for level, text in logged if message in text] == [logging.WARNING]
    assert flp.installed() == {} and part("model_executor.custom_op").op_registry_oot == {}


def of_any_text():
    """The adapter, for a vLLM of any source text."""
    return dataclasses.replace(vllm.HOST, seams=tuple(dataclasses.replace(seam, source="") for seam in vllm.HOST.seams))


def test_the_entry_point_takes_what_it_knows(hosts, monkeypatch):  # noqa: F811
    hosts("vllm")
    monkeypatch.setattr(vllm, "HOST", of_any_text())
    monkeypatch.setenv("FLP_VLLM", "sampled")
    flp_plugins.vllm(), flp_plugins.vllm()
    assert list(flp.installed()) == ["vllm"]


@pytest.mark.parametrize("engine, group", [("vllm", "vllm.general_plugins"), ("sglang", "sglang.srt.plugins")])
def test_off_costs_nothing(engine, group):
    """Neither torch nor the engine nor flp itself is imported, and the package says where the entry point is."""
    environment = {name: value for name, value in os.environ.items() if name != "FLP_" + engine.upper()}
    text = "import sys, flp_plugins; flp_plugins.%s(); print({'torch', %r, 'flp', 'numpy'} & set(sys.modules))" % (
        engine, engine)
    said = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
    project = (flp_vllm.TREE / "runtime" / "python" / "pyproject.toml").read_text()
    assert '[project.entry-points."%s"]\nflp = "flp_plugins:%s"\n' % (group, engine) in project


def test_two_ranks_exchange_a_few_numbers_a_row(ranks, tmp_path):
    """A head that is divided, whose padding counts nowhere: the same bits on both ranks, those of float64 nearly."""
    hidden, weight, tokens, _ = (tensor if tensor is None else tensor.cpu() for tensor in made(10))
    weight = weight[:V]
    tokens[:8] = exact(hidden, weight).argmax(1)[:8]
    first, second = ranks.run(2, flp_vllm.on_a_rank, root=str(tmp_path), weight=weight, cuts=(0, 170, V), hidden=hidden,
                              tokens=tokens, k=5)
    for one, other in zip((*first[0], first[1]), (*second[0], second[1])):
        assert torch.equal(one, other)
    is_exact(first[0], exact(hidden, weight), tokens, 5)
    agrees(first[1], reference(hidden, weight, tokens)[0].unsqueeze(1).expand(-1, 3))
