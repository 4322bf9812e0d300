"""Adapters of trainers that hand over hidden states, on stand-in hosts: prime-rl, torchtitan, NeMo-RL,
SkyRL, OpenRLHF; SGLang."""
import copy
import dataclasses
import importlib.util
import sys
import threading
import types

import flp_hosts
import pytest
import torch
from flp_reference import DEVICE, doubles, problem, reference, relative

import flp
from flp._passes import _counts
from flp.adapters import openrlhf, sglang
from test_flp_adapters import agrees, counted, gradients_agree, hosts, installed  # noqa: F401

LOSS = "torchtitan.components.loss."
HEADS = {False: ("lm_head", "_SequenceChunkedLogProbEntropyFn"),
         True: ("lm_head_gemma", "_GemmaChunkedLogProbEntropyFn")}


@pytest.mark.parametrize("gemma", [False, True])
def test_prime_rl(hosts, gemma):  # noqa: F811
    file, name = HEADS[gemma]
    head = getattr(installed(hosts, "prime-rl", "prime_rl.trainer.models.layers." + file), name)
    hidden, weight, target, _ = problem()
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]
    doubled = doubles(*inputs)
    temperature = torch.linspace(0.4, 2, len(target), device=DEVICE)
    more = (3.0,) if gemma else ()
    logprob, entropy = head.apply(hidden, weight, target, 1 / temperature, 512, *more)
    wanted = reference(*doubled, target, temperature=temperature, softcap=3.0 if gemma else None)
    agrees(logprob, wanted[0]), agrees(entropy, wanted[1])
    gradients_agree((logprob,), wanted[:1], inputs, doubled)
    assert head.apply(hidden.double(), weight.double(), target, 1 / temperature, 512, *more) == "host"


def test_prime_rl_has_no_gradient_of_the_entropy(hosts):  # noqa: F811
    head = installed(hosts, "prime-rl", "prime_rl.trainer.models.layers.lm_head")._SequenceChunkedLogProbEntropyFn
    hidden, weight, target, _ = problem()
    arguments = (hidden.requires_grad_(), weight, target, torch.ones(len(target), device=DEVICE), 512)
    logprob, entropy = head.apply(*arguments)
    with pytest.raises(RuntimeError, match="no gradient of the entropy"):
        (logprob - 0.01 * entropy).sum().backward()
    logprob, entropy = head.apply(*arguments)
    (logprob + 0 * entropy).sum().backward()
    assert hidden.grad.any()
    with torch.no_grad():
        assert not head.apply(*arguments)[1].requires_grad


class Policy:
    """A loss of reinforcement learning, as torchtitan's: log-probabilities and a metric of what the head returned."""

    def __init__(self, module):
        self.module = module

    def __call__(self, logits, labels, global_valid_tokens=None, *, advantages):
        assert logits.shape[:-1] == labels.shape
        logprob, entropy = self.module.compute_logprobs(logits, labels, return_entropy=True)
        assert not entropy.requires_grad
        return -(logprob * advantages).sum() / global_valid_tokens, {"entropy/mean": entropy.mean()}


class Largest:
    """A loss that looks at the scores."""

    def __call__(self, logits, labels, global_valid_tokens=None):
        return logits.amax(-1).sum(), {}


def titan(hosts, loss=None):  # noqa: F811
    """The module, a wrapper around a head, hidden states (B,L,D), labels, and the head's parameters in float64."""
    module = installed(hosts, "torchtitan", "torchtitan.components.loss")
    hidden, weight, target, bias = problem(n=12, bias=True)
    head = torch.nn.Linear(weight.shape[1], weight.shape[0]).to(DEVICE)
    head.weight.data, head.bias.data = weight, bias
    wrapper = module.ChunkedLossWrapper(head, loss and loss(module))
    return module, wrapper, hidden.view(3, 4, -1).requires_grad_(), target.view(3, 4)


def wanted_of(wrapper, hidden, labels):
    doubled = doubles(hidden, wrapper.lm_head.weight, wrapper.lm_head.bias)
    return doubled, reference(doubled[0].flatten(0, 1), doubled[1], labels.flatten(), doubled[2])


def grads_agree(loss, want, wrapper, hidden, doubled):
    assert abs(float(loss - want)) < 1e-5 * abs(float(want))
    loss.backward(), want.backward()
    for tensor, double in zip((hidden, wrapper.lm_head.weight, wrapper.lm_head.bias), doubled):
        assert relative(tensor.grad, double.grad) < 1e-5


def test_torchtitan_cross_entropy(hosts):  # noqa: F811
    _, wrapper, hidden, labels = titan(hosts)
    labels[0, :2] = -100
    doubled, (logprob, _) = wanted_of(wrapper, hidden, labels)
    kind = type(wrapper.lm_head)
    loss, metrics = wrapper(hidden, labels, torch.tensor(10.0))
    assert metrics == {} and type(wrapper.lm_head) is kind and "forward" not in vars(wrapper.lm_head)
    grads_agree(loss, -logprob.sum() / 10, wrapper, hidden, doubled)
    alone, _ = wrapper(hidden.detach(), labels)
    assert not alone.requires_grad and abs(float(alone + logprob.sum())) < 1e-4


def test_torchtitan_losses_that_compute_log_probabilities(hosts):  # noqa: F811
    module, wrapper, hidden, labels = titan(hosts, Policy)
    advantages = torch.randn(3, 4, device=DEVICE)
    doubled, (logprob, entropy) = wanted_of(wrapper, hidden, labels)
    loss, metrics = wrapper(hidden, labels, 12, advantages=advantages)
    assert abs(float(metrics["entropy/mean"] - entropy.mean())) < 1e-5
    grads_agree(loss, -(logprob.view(3, 4) * advantages).sum() / 12, wrapper, hidden, doubled)
    assert module.compute_logprobs(torch.zeros(1, 2), labels) == "host"
    assert counted("torchtitan", LOSS + "ChunkedLossWrapper.__call__") == ({"recompute": 1}, {})
    assert counted("torchtitan", LOSS + "compute_logprobs") == ({"recompute": 1}, {_counts.NOT_ASKED: 1})


def test_torchtitan_leaves_to_the_host_what_it_cannot_take(hosts, logged):  # noqa: F811
    module, wrapper, hidden, labels = titan(hosts, lambda module: Largest())
    assert [wrapper(hidden, labels) for _ in range(2)] == ["host", "host"]
    assert list(counted("torchtitan", LOSS + "ChunkedLossWrapper.__call__")[1].values()) == [2]
    wrapper.loss_fn = module.CrossEntropyLoss()
    kept = wrapper.lm_head

    def replaced(linear):
        linear.forward = lambda hidden: hidden
        return linear

    def hooked(linear):
        linear.register_forward_hook(lambda *_: None)
        return linear

    class Capped(torch.nn.Linear):
        def forward(self, hidden):
            return torch.tanh(super().forward(hidden))

    for head in (replaced(torch.nn.Linear(64, 331)), hooked(torch.nn.Linear(64, 331)), Capped(64, 331), None,
                 torch.nn.Linear(64, 331).double()):
        wrapper.lm_head = head
        assert wrapper(hidden, labels) == "host"
    wrapper.lm_head = kept
    module.spmd.is_type_checking = lambda: True
    assert wrapper(hidden, labels) == "host"
    module.spmd.is_type_checking = lambda: False
    wrapper.__class__ = type("Graphed", (module.ChunkedLossWrapper,), {})
    assert wrapper(hidden, labels) == "host"
    for reason in ("Largest does more with the scores", "forward was replaced", "forward hooks", "type Capped",
                   "set_lm_head", "dtype torch.float64", "types of shards", "type Graphed"):
        assert sum(reason in text for _, text in logged) == 1, reason


ONE_RANK = flp_hosts.module_of(size=lambda: 1)


def test_nemo_rl_fused_head(hosts):  # noqa: F811
    head = installed(hosts, "nemo-rl", "nemo_rl.distributed.model_utils").ChunkedDistributedHiddenStatesToLogprobs
    hidden, weight, target, _ = problem(n=12)
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]
    doubled = doubles(*inputs)
    given, tokens, more = hidden.view(4, 3, -1), target.view(4, 3).t(), (0, len(weight), 5, ONE_RANK)  # (S,B,D), (B,S)
    got = head.apply(given, tokens, weight, *more)
    want = reference(*doubled, target)[0].view(4, 3).t()
    agrees(got, want)
    gradients_agree((got,), (want,), inputs, doubled)
    assert not head.apply(given, tokens, weight, *more, True).requires_grad
    assert head.apply(given.double(), tokens, weight.double(), *more) == "host"


@pytest.mark.parametrize("name, module", [("nemo-rl", "nemo_rl.distributed.model_utils"),
                                          ("skyrl", "skyrl.backends.skyrl_train.distributed.megatron.model_utils")])
def test_distributed_log_probabilities_of_scores(hosts, monkeypatch, name, module):  # noqa: F811
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    utils = installed(hosts, name, module)
    scores, target = torch.randn(2, 5, 33, requires_grad=True), torch.randint(0, 33, (2, 5))
    want = scores.detach().double().log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    agrees(utils.DistributedLogprob.apply(scores, target, 0, 33, ONE_RANK), want)
    agrees(utils.ChunkedDistributedLogprob.apply(scores, target, 0, 33, 2, ONE_RANK, False), want)
    assert utils.DistributedLogprob.apply(scores, target, 0, 33, ONE_RANK).requires_grad
    assert not utils.DistributedLogprob.apply(scores, target, 0, 33, ONE_RANK, True).requires_grad
    assert not utils.ChunkedDistributedLogprob.apply(scores, target, 0, 33, 2, ONE_RANK, True).requires_grad
    two = flp_hosts.module_of(size=lambda: 2)
    assert utils.DistributedLogprob.apply(scores, target, 0, 17, two, False) == "host"
    assert utils.ChunkedDistributedLogprob.apply(scores, target, 0, 17, 4, two) == "host"


@pytest.fixture
def skyrl(hosts, monkeypatch):  # noqa: F811
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: 0)
    return installed(hosts, "skyrl", "skyrl.backends.skyrl_train.distributed.megatron.model_utils")


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_skyrl_fused_head(skyrl, temperature):
    hidden, weight, target, _ = problem(n=12)
    doubled = doubles(hidden, weight)
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]
    got = skyrl.from_parallel_hidden_to_logprobs(hidden.view(3, 4, -1), weight, target.view(3, 4), 0, len(weight),
                                                 ONE_RANK, temperature=temperature)
    wanted = reference(*doubled, target, temperature=temperature)
    agrees(got, wanted[0].view(3, 4))
    gradients_agree((got.flatten(),), wanted[:1], inputs, doubled)
    again = skyrl.from_parallel_hidden_to_logprobs_packed_sequences(
        hidden.view(3, 4, -1), weight, target.view(3, 4), None, 4, 0, len(weight), ONE_RANK, temperature=temperature)
    assert torch.equal(again, got)
    entropy = skyrl._fused_vocab_parallel_entropy_from_hidden(hidden.view(3, 4, -1), weight, ONE_RANK, 2, temperature)
    agrees(entropy, wanted[1].view(3, 4))
    assert not entropy.requires_grad
    fused = {"_fused_lm_head_logprob_apply": {"recompute": 2}, "from_parallel_hidden_to_logprobs": {"recompute": 1},
             "from_parallel_hidden_to_logprobs_packed_sequences": {"recompute": 1},
             "_fused_vocab_parallel_entropy_from_hidden": {"score": 1}}
    assert {name: counted("skyrl", "%s.%s" % (skyrl.__name__, name)) for name in fused} == {
        name: (count, {}) for name, count in fused.items()}


def test_skyrl_leaves_to_the_host_a_head_over_the_temperature(skyrl):
    hidden, weight, target, _ = problem(n=12, depth=60)
    hidden = hidden.view(3, 4, -1)
    answer, divided = skyrl.from_parallel_hidden_to_logprobs(hidden, weight, target.view(3, 4), 0, 331, ONE_RANK,
                                                             temperature=0.5)
    assert answer == "host" and torch.equal(divided, weight / 0.5)
    assert skyrl._fused_vocab_parallel_entropy_from_hidden(hidden, weight, ONE_RANK) == "host"
    for name in ("_fused_lm_head_logprob_apply", "from_parallel_hidden_to_logprobs"):
        assert counted("skyrl", "%s.%s" % (skyrl.__name__, name)) == ({}, {"the hidden size 60 is no multiple of 8": 1})


def test_skyrl_without_megatron_has_its_other_seam(hosts, monkeypatch):  # noqa: F811
    """Its FSDP workers import nothing of Megatron's, and megatron-core need not be there."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    utils = installed(hosts, "skyrl", "skyrl.backends.skyrl_train.utils.torch_utils")
    assert "skyrl.backends.skyrl_train.distributed.megatron.model_utils" not in sys.modules
    logits, labels = torch.randn(2, 5, 33), torch.randint(0, 33, (2, 5))
    want = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(utils.logprobs_from_logits(logits, labels), want, atol=1e-6)


def batch():
    torch.manual_seed(1)
    ids = torch.randint(0, 97, (3, 9), device=DEVICE)
    mask = torch.ones_like(ids)
    mask[0, :3] = mask[2, :1] = 0
    return ids, mask


def wanted_of_model(model, ids, mask, temperature):
    """(B, T-1) log-probabilities and entropies of the model in float64."""
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    logp = (model.double()(ids, position_ids=positions).logits / temperature).log_softmax(-1)[:, :-1]
    model.float()
    return logp.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1), -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("packing", [False, True])
def test_openrlhf_actor(hosts, packing):  # noqa: F811
    actor_class = installed(hosts, "openrlhf", "openrlhf.models.actor").Actor
    ids, mask = batch()
    model = flp_hosts.TinyModel().to(DEVICE)
    actor = actor_class(model, temperature=0.6, packing_samples=packing)
    want, entropy = (tensor.detach() for tensor in wanted_of_model(model, ids, mask, 0.6))
    kept = mask[:, :-1].bool() if packing else torch.ones_like(want, dtype=torch.bool)
    got = actor(ids, attention_mask=mask, return_logprobs=True)
    agrees(got[kept], want[kept])
    actions = torch.ones(3, 4, dtype=torch.long, device=DEVICE)
    actions[1, 2:] = 0
    got, output = actor(ids, actions, mask, return_output=True)
    agrees(got, want[:, -4:] * actions)
    assert output.logits is None and output.aux_loss == 0.0
    got, output = actor(ids, actions, mask, return_output=True, return_entropy=True)
    agrees(got, want[:, -4:] * actions), agrees(output.entropy[kept], entropy[kept])
    got.sum().backward()
    grad = model.head.weight.grad.clone()
    model.zero_grad()
    (wanted_of_model(model, ids, mask, 0.6)[0][:, -4:] * actions).sum().backward()
    assert relative(grad, model.head.weight.grad) < 1e-5
    assert model.head(torch.zeros(1, 32, device=DEVICE)).shape == (1, 97)


def test_openrlhf_leaves_to_the_host_what_it_cannot_take(hosts, logged):  # noqa: F811
    actor_class = installed(hosts, "openrlhf", "openrlhf.models.actor").Actor
    ids, mask = batch()
    capped = actor_class(flp_hosts.TinyModel(softcap=5.0).to(DEVICE))
    assert [capped(ids, attention_mask=mask, return_logprobs=True) for _ in range(2)] == ["host", "host"]
    assert sum("softcap" in text for _, text in logged) == 1
    assert "forward" not in vars(capped.model.head)
    twice = actor_class(flp_hosts.TinyModel(heads=2).to(DEVICE))
    assert twice(ids, attention_mask=mask, return_logprobs=True) == "host"
    actor = actor_class(flp_hosts.TinyModel().to(DEVICE))
    assert actor(ids, attention_mask=mask, return_output=True) == "host"
    assert actor(ids, attention_mask=mask, return_logprobs=True, pixel_values=ids) == "host"
    actor.model.head = torch.nn.Sequential(actor.model.head)
    assert actor(ids, attention_mask=mask, return_logprobs=True) == "host"
    assert any("Sequential" in text for _, text in logged)


def test_openrlhf_heads_record_one_thread_and_no_copy():
    head, hidden, others = torch.nn.Linear(16, 31), torch.randn(2, 16), {}

    def score():
        others["thread"] = head(hidden)

    with openrlhf.passing(head) as seen:
        thread = threading.Thread(target=score)
        thread.start()
        thread.join()
        others["copy"] = copy.deepcopy(head)(hidden)
        assert seen == [] and head(hidden).shape == (0,) and seen[0] is hidden and len(seen) == 1
    assert type(head) is torch.nn.Linear and set(vars(head)) == set(vars(torch.nn.Linear(1, 1)))
    assert all(torch.equal(others[name], head(hidden)) for name in ("thread", "copy"))


LOGPROBS, SCORES = "sglang.srt.layers.logprob_processor", "sglang.srt.layers.logits_processor"
FORWARD = LOGPROBS + ".InputLogprobProcessor.forward"


class Request(types.SimpleNamespace):
    """One step of SGLang: three requests of 5, 0 and 7 input rows and a drawn one each; a head of 331 tokens, which is
    filled up to 336."""

    def __init__(self, hosts, processor=None, head=None, **metadata):  # noqa: F811
        own = installed(hosts, "sglang", LOGPROBS)
        hidden, weight, _, _ = problem(n=15)
        head = {"weight": torch.nn.functional.pad(weight, (0, 0, 0, 336 - len(weight))), **(head or {})}
        super().__init__(
            own=own, hidden=hidden, weight=weight, tokens=torch.arange(12, device=DEVICE) * 7, counts=[5, 0, 7],
            rows=torch.tensor([0, 1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13], device=DEVICE),
            drawn=torch.tensor([5, 6, 14], device=DEVICE), head=types.SimpleNamespace(**head),
            processor=importlib.import_module(SCORES).LogitsProcessor(**(processor or {})))
        self.metadata = types.SimpleNamespace(**{**dict(
            extend_input_logprob_token_ids_gpu=self.tokens, extend_logprob_pruned_lens_cpu=self.counts,
            extend_return_top_logprob=False, extend_token_ids_logprob=False, top_logprobs_nums=None,
            token_ids_logprobs=None), **metadata})

    def __call__(self):
        return self.own.InputLogprobProcessor(len(self.weight)).forward(
            pruned_states=self.hidden, sample_indices=self.drawn, input_logprob_indices=self.rows, token_to_seq_idx=[],
            lm_head=self.head, get_logits_fn=self.processor._get_logits, logits_metadata=self.metadata)

    def exact(self, scale=1.0, softcap=None):
        scores = scale * self.hidden[self.rows].double() @ self.weight.double().T
        return (softcap * torch.tanh(scores / softcap) if softcap else scores).log_softmax(-1)


@pytest.mark.parametrize("changes", [{}, {"logit_scale": 0.5, "final_logit_softcapping": 3.0}], ids=str)
def test_sglang(hosts, changes):  # noqa: F811
    step = Request(hosts, changes, extend_return_top_logprob=True, top_logprobs_nums=[3, 9, 0],
                   extend_token_ids_logprob=True, token_ids_logprobs=[None, [4], [8, 9]])
    result, drawn = step()
    exact = step.exact(*changes.values())
    agrees(result.token_logprobs, exact.gather(1, step.tokens.unsqueeze(1))[:, 0])
    assert result.top_logprobs_idx == [exact[:5].topk(3).indices.tolist(), [], [[]] * 7]
    assert [len(rows) for rows in result.top_logprobs_val] == [5, 0, 7]
    agrees(torch.tensor(result.top_logprobs_val[0], device=DEVICE), exact[:5].topk(3).values)
    assert result.token_ids_logprobs_idx == [[], [], [[8, 9]] * 7] and result.token_ids_logprobs_val[:2] == [[], []]
    agrees(torch.tensor(result.token_ids_logprobs_val[2], device=DEVICE), exact[5:, 8:10])
    assert torch.equal(drawn, step.hidden[step.drawn] @ step.head.weight.T) and step.processor.rows == [3]
    assert counted("sglang", FORWARD) == ({"score": 1}, {})


def test_sglang_of_no_lists_and_of_no_rows(hosts):  # noqa: F811
    step = Request(hosts)
    assert step()[0].top_logprobs_val is step()[0].token_ids_logprobs_idx is None
    vars(step).update(rows=step.rows[:0])
    vars(step.metadata).update(extend_return_top_logprob=True, top_logprobs_nums=[2, 2, 2],
                               extend_logprob_pruned_lens_cpu=[0, 0, 0])
    result, _ = step()
    assert result.token_logprobs.shape == (0,) and result.top_logprobs_val == [[], [], []]


def other_scores(step):
    type(step.processor)._compute_lm_head = lambda self, hidden, head: None


def deterministic(step):
    step.own._deterministic_inference_enabled = lambda: True


@pytest.mark.parametrize("change, reason", [
    ({"processor": {"do_tensor_parallel_all_gather": True}}, "the head is divided over tensor parallel ranks"),
    ({"head": {"tp_size": 2}}, "the head is divided over tensor parallel ranks"),
    ({"head": {"set_lora": None}}, "the head has LoRA"),
    ({"head": {"quant_method": torch.nn.ReLU()}}, "the head is quantised (ReLU)"),
    ({"head": {"use_intel_amx_backend": True}}, "the head is packed for Intel AMX"),
    ({"processor": {"rl_on_policy_target": "fsdp"}}, "true on-policy sampling has scores in bfloat16"),
    ({"processor": {"logit_scale": torch.ones(331)}}, "logit_scale is of type Tensor (accepted: a number)"),
    ({"extend_return_top_logprob": True, "top_logprobs_nums": [2, 0, 129]},
     "top lists of 129 tokens are asked for (accepted: up to 128)"),
    ({"extend_token_ids_logprob": True, "token_ids_logprobs": [None, None, list(range(512))]},
     "lists of token ids of 512 tokens are asked for (accepted: up to 511)"),
    (other_scores, "its scores are not made by LogitsProcessor's own functions"),
    (deterministic, "deterministic inference gives input tokens the bits that they have when drawn"),
], ids=str)
def test_what_sglang_keeps(hosts, logged, change, reason):  # noqa: F811
    step = Request(hosts, **(change if isinstance(change, dict) else {}))
    if callable(change):
        change(step)
    assert [step(), step()] == ["host", "host"]
    assert [reason in text for _, text in logged if "its own" in text] == [True]
    assert counted("sglang", FORWARD) == ({}, {reason: 2})


def test_sglang_plug_in_does_as_its_environment_says(hosts, monkeypatch, logged):  # noqa: F811
    hosts("sglang")
    monkeypatch.delenv("FLP_SGLANG", raising=False)
    sglang.register()
    assert flp.installed() == {} and "sglang" not in sys.modules
    monkeypatch.setenv("FLP_SGLANG", "decode")
    with pytest.raises(SystemExit, match=r"FLP_SGLANG is 'decode' \(accepted: unset, prompt\)"):
        sglang.register()
    monkeypatch.setenv("FLP_SGLANG", "prompt")
    sglang.register()  # the stand-in's text is another, which the log says
    assert flp.installed() == {} and any("source text of " + FORWARD in text for _, text in logged)
    monkeypatch.setenv("FLP_SGLANG_STRICT", "1")
    with pytest.raises(SystemExit, match="source text of " + FORWARD):
        sglang.register()
    monkeypatch.setenv("FLP_SGLANG_STRICT", "yes")
    with pytest.raises(SystemExit, match=r"FLP_SGLANG_STRICT is 'yes' \(accepted: unset, 0, 1\)"):
        sglang.register()
    monkeypatch.setattr(sglang, "HOST", untested(sglang.HOST))
    monkeypatch.setenv("FLP_SGLANG_STRICT", "0")
    sglang.register()
    assert list(flp.installed()) == ["sglang"]


def untested(host):
    """A host whose seams may have any source text."""
    return dataclasses.replace(host, seams=tuple(dataclasses.replace(seam, source="") for seam in host.seams))
