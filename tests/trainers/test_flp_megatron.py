"""flp.adapters.megatron and the adapters on it, over stand-ins for Megatron and its trainers."""
import copy
import importlib
import types

import flp_megatron as standin
import pytest
import torch
from flp_megatron import DEPTH, VOCAB, Model
from flp_reference import doubles, reference, relative
from test_flp_adapters import counted, hosts  # noqa: F401

import flp
from flp._passes import _counts
from flp.adapters import _deferred

processor = flp.adapters.megatron.output_processor
LENGTH, BATCH = 9, 2


def hidden_of(length=LENGTH, batch=BATCH, dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(length, batch, DEPTH).to(dtype).requires_grad_()


def labels_of(length=LENGTH, batch=BATCH):
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(2))


def wanted(model, hidden, labels, **options):
    """(b, s) of float64, and its inputs."""
    inputs = doubles(hidden, model.output_layer.weight)
    values = reference(inputs[0].reshape(-1, DEPTH), inputs[1], labels.t().flatten(), **options)
    return [value.view(labels.t().shape).t() for value in values], inputs


# ---- the output processor ----

def test_values_and_gradients():
    model, hidden, labels = Model(), hidden_of(), labels_of()
    mask = torch.arange(LENGTH) % 3 > 0
    mask = mask.expand(BATCH, LENGTH)
    logprob, entropy = model(hidden, labels, processor(temperature=0.7, entropy=True), loss_mask=mask.long())
    want, inputs = wanted(model, hidden, labels, temperature=0.7)
    (logprob.sum() + 2 * entropy.sum()).backward()
    ((want[0] + 2 * want[1]) * mask).sum().backward()
    assert logprob.is_contiguous() and logprob.dtype is torch.float32
    for ours, value in zip((logprob, entropy), want):
        assert torch.allclose(ours.double(), value * mask, atol=1e-5) and (ours[~mask] == 0).all()
    for ours, value in zip((hidden, model.output_layer.weight), inputs):
        assert relative(ours.grad, value.grad) < 1e-5


def test_one_temperature_a_token_and_a_softcap():
    model, hidden, labels = Model(), hidden_of(), labels_of()
    temperature = torch.rand(BATCH, LENGTH) + 0.5
    ours = model(hidden, labels, processor(softcap=5.0), {"temperature": temperature})
    want, _ = wanted(model, hidden, labels, temperature=temperature.t().flatten().double(), softcap=5.0)
    assert torch.allclose(ours.double(), want[0], atol=1e-5)


def test_a_scale_is_the_models():
    model, hidden, labels = Model(mup_output_mult=0.25), hidden_of(), labels_of()
    model.config.use_mup = True
    ours, (want, *_) = model(hidden, labels, processor()), wanted(model, hidden, labels, scale=0.25)[0]
    assert torch.allclose(ours.double(), want, atol=1e-5)


def test_best_tokens_have_their_own_dimension():
    model, hidden, labels = Model(), hidden_of(), labels_of()
    logprob, top = model(hidden, labels, processor(topk=3))
    assert logprob.shape == labels.shape and top.ids.shape == (*labels.shape, 3)
    assert torch.equal(top.ids[..., 0], model(hidden).argmax(-1))


@pytest.mark.parametrize("padded", [False, True])
def test_labels_are_the_next_tokens_of_a_sequence(padded):
    model, hidden, tokens = Model(), hidden_of(20, 1), labels_of(20, 1)
    ends = torch.tensor([0, 5, 8, 8, 15], dtype=torch.int32)
    packed = types.SimpleNamespace(cu_seqlens_q=ends, cu_seqlens_q_padded=None)
    if padded:
        packed.cu_seqlens_q_padded = torch.tensor([0, 6, 10, 10, 18], dtype=torch.int32)
    begins = (packed.cu_seqlens_q_padded if padded else ends).tolist()
    counted = torch.zeros(1, 20, dtype=torch.bool)
    for begin, count in zip(begins, (ends[1:] - ends[:-1]).tolist()):
        counted[:, begin:begin + max(count - 1, 0)] = True
    loss_mask = (torch.arange(20) % 4 > 0).long().unsqueeze(0)
    ours = model(hidden, None, processor(), input_ids=tokens, packed_seq_params=packed, loss_mask=loss_mask)
    want, _ = wanted(model, hidden, tokens.roll(-1, -1))
    assert torch.allclose(ours.double(), want[0] * (counted & loss_mask.roll(-1, -1).bool()), atol=1e-5)


def test_labels_of_plain_sequences():
    model, hidden, tokens = Model(), hidden_of(), labels_of()
    ours = model(hidden, None, processor(), input_ids=tokens)
    want, _ = wanted(model, hidden, tokens.roll(-1, -1))
    assert torch.allclose(ours[:, :-1].double(), want[0][:, :-1], atol=1e-5) and (ours[:, -1] == 0).all()


def test_a_padded_vocabulary():
    model, hidden, labels = Model(), hidden_of(), labels_of() % 50
    ours = model(hidden, labels, processor(vocab_size=50))
    ours.sum().backward()
    weight = model.output_layer.weight
    inputs = doubles(hidden, weight[:50])
    want, _ = reference(inputs[0].reshape(-1, DEPTH), inputs[1], labels.t().flatten())
    want.sum().backward()
    assert torch.allclose(ours.double(), want.view(LENGTH, BATCH).t(), atol=1e-5)
    assert relative(weight.grad[:50], inputs[1].grad) < 1e-5 and not weight.grad[50:].any()


@pytest.mark.parametrize("zero_out", [False, True])
@pytest.mark.parametrize("vocab_size", [None, 50])
def test_main_grad(zero_out, vocab_size):
    model, hidden, labels = Model(), hidden_of(), labels_of() % 50
    weight, layer = model.output_layer.weight, model.output_layer
    own, = torch.autograd.grad(model(hidden, labels, processor(vocab_size=vocab_size)).sum(), weight)
    layer.gradient_accumulation_fusion = True
    weight.main_grad, weight.grad_added_to_main_grad = torch.full_like(weight, 0.5), False
    weight.zero_out_wgrad = zero_out
    model(hidden, labels, processor(vocab_size=vocab_size)).sum().backward()
    assert weight.grad_added_to_main_grad and torch.allclose(weight.main_grad, own + 0.5, atol=1e-5)
    assert weight.grad is not None and not (zero_out and weight.grad.any())
    del weight.grad_added_to_main_grad
    weight.grad = None
    model(hidden, labels, processor()).sum().backward()
    assert weight.grad is None
    with torch.no_grad():
        assert not model(hidden, labels, processor()).requires_grad


# ---- scores that nobody makes ----

def test_deferred_scores():
    model, hidden, labels = Model(), hidden_of(), labels_of()
    own_class, own_loss = type(model.output_layer), model(hidden, labels)
    with _deferred.deferring("slime", [torch.nn.Sequential(model)]):
        scores, loss = model(hidden), model(hidden, labels)
        assert isinstance(scores, _deferred.Deferred) and scores.shape == (BATCH, LENGTH, VOCAB)
        assert scores.size(1) == LENGTH and scores.dtype is torch.float32 and scores.device == hidden.device
        assert scores.data is scores and scores.float() is scores and "Deferred" in repr(scores)
        assert torch.allclose(loss, own_loss, atol=1e-5)
        assert (scores * 2).head.scale == 2 and float((0 * scores.sum()).detach()) == 0
        for compute in (torch.argmax, torch.softmax, lambda scores: scores + 1, lambda scores: 2 * scores.sum(),
                        lambda scores: scores[0], lambda scores: scores.transpose(1, 2)):
            with pytest.raises(flp.HostError, match="the scores of a Megatron model are computed with"):
                compute(scores, *([-1] if compute is torch.softmax else []))
        assert torch.is_tensor(model.output_layer(hidden, runtime_gather_output=True)[0].sum())
    assert type(model.output_layer) is own_class and "compute_language_model_loss" not in vars(model)
    assert type(model(hidden)) is torch.Tensor


@pytest.mark.parametrize("depth, change, says", [
    (DEPTH, lambda layer: layer.register_forward_hook(lambda *_: None), "forward hooks"),
    (12, lambda layer: None, "no multiple of 8")], ids=["hooked", "ragged"])
def test_a_head_that_cannot_be_deferred_makes_scores(logged, depth, change, says):
    model = Model()
    model.output_layer = standin.ColumnParallelLinear(torch.randn(VOCAB, depth), config=model.config)
    change(model.output_layer)
    with _deferred.deferring("slime", [model]):
        assert type(model(torch.randn(LENGTH, BATCH, depth))) is torch.Tensor
    assert len(logged) == 1 and says in logged[0][1]


# ---- slime and Miles ----

TOTAL, RESPONSE = (5, 4, 6), (2, 3, 1)


def arguments(**others):
    return types.SimpleNamespace(**{**dict(loss_type="policy_loss", rollout_temperature=0.8, entropy_coef=0.01,
                                           allgather_cp=False, further=False), **others})


def data():
    tokens = labels_of(sum(TOTAL), 1)[0].split(TOTAL)
    return {"hidden": hidden_of(sum(TOTAL) + 1, 1), "labels": labels_of(sum(TOTAL) + 1, 1),
            "samples": dict(unconcat_tokens=tokens, total_lengths=TOTAL, response_lengths=RESPONSE)}


@pytest.fixture(params=["slime", "miles"])
def trainer(request, hosts):  # noqa: F811
    """The stand-in's module of steps, and the name of the adapter."""
    hosts(request.param + "-megatron")
    module = importlib.import_module(request.param + ".backends.megatron_utils.model")
    return module, request.param + "-megatron"


def step(module, model, args):
    model.zero_grad()
    batch = data()
    loss = module.train_one_step(args, 0, 0, batch, [model], None, None, 1, 3)
    loss.backward()
    return loss.detach(), batch["hidden"].grad, model.output_layer.weight.grad


@pytest.mark.parametrize("further", [False, True])
def test_a_trainers_step(trainer, further, monkeypatch):
    (module, name), model, args = trainer, Model(), arguments(further=further)
    own = step(module, model, args)
    flp.install(name, untested=True)
    monkeypatch.setattr(model.output_layer, "register_buffer", None)  # nothing else of the layer is touched
    for ours, value in zip(step(module, model, args), own):
        assert relative(ours, value.double()) < 1e-5
    flp.uninstall(name)
    assert all(torch.equal(again, value) for again, value in zip(step(module, model, args), own))


def test_a_trainers_scores(trainer):
    (module, name), model = trainer, Model()

    def scored():
        found = module.forward_only(module.get_log_probs_and_entropy, arguments(), [model], data(), [1])
        return found[1] if isinstance(found, tuple) else found

    own = scored()
    flp.install(name, untested=True)
    ours = scored()
    assert [len(part) for part in ours["log_probs"]] == list(RESPONSE)
    for key in ("log_probs", "entropy"):
        assert torch.allclose(torch.cat(ours[key]), torch.cat(own[key]), atol=1e-5)
    for seam in (module.forward_only, module.get_log_probs_and_entropy):
        assert counted(name, "%s.%s" % (seam.__module__, seam.__name__)) == ({"score": 1}, {})


@pytest.mark.parametrize("change", [{"entropy_coef": 0}, {"allgather_cp": True}])
def test_a_trainers_options(trainer, change):
    (module, name), model, args = trainer, Model(), arguments(**change)
    flp.install(name, untested=True)
    loss = importlib.import_module(module.get_log_probs_and_entropy.__module__)
    more = {} if "slime" in name else {"entropy_requires_grad": args.entropy_coef != 0}
    with _deferred.deferring(name, [model]):
        found = module.get_log_probs_and_entropy(model(data()["hidden"]), args=args, with_entropy=True, **more,
                                                 **data()["samples"])
    found = found[1] if isinstance(found, tuple) else found
    assert found["log_probs"][0].requires_grad and found["entropy"][0].requires_grad == (args.entropy_coef != 0)
    assert loss.Redistributed.calls == args.allgather_cp


@pytest.mark.parametrize("host, change, says", [
    ("slime", {"rollout_top_p": 0.9}, "rollout_top_p asks for masked scores"),
    ("slime", {"overlap_moe_expert_parallel_comm": True}, "in pieces"),
    ("slime", {"loss_type": "custom_loss"}, "loss_type is 'custom_loss'"),
    ("miles", {"true_on_policy_mode": True}, "bits of the rollout engine"),
    ("miles", {"recompute_loss_function": True}, "recompute_loss_function"),
    ("miles", {"loss_type": "custom_loss"}, "loss_type is 'custom_loss'"),
])
def test_what_is_left_to_a_trainer(hosts, logged, host, change, says):  # noqa: F811
    hosts(host + "-megatron")
    module, model = importlib.import_module(host + ".backends.megatron_utils.model"), Model()
    own = step(module, model, arguments(**change))
    flp.install(host + "-megatron", untested=True)
    for _ in range(2):
        assert all(torch.equal(ours, value) for ours, value in zip(step(module, model, arguments(**change)), own))
    assert len([text for _, text in logged if "its own train_one_step runs" in text and says in text]) == 1
    by_mode, own = counted(host + "-megatron", module.__name__ + ".train_one_step")
    assert by_mode == {} and list(own.values()) == [2] and says in next(iter(own))


def test_a_changed_trainer_is_refused(trainer):
    with pytest.raises(flp.HostError, match="source text of .*%s" % trainer[1][:5]):
        flp.install(trainer[1])


# ---- verl ----

def test_verl(hosts, logged):  # noqa: F811
    hosts("verl-megatron")
    module = importlib.import_module("verl.models.mcore.model_forward_fused")
    flp.install("verl-megatron", untested=True)
    model, hidden, labels = Model(), hidden_of(LENGTH, 1), labels_of(LENGTH, 1)
    call = types.SimpleNamespace(temperature=0.8)
    output = model(hidden, labels, module.fused_output_processor, call)
    want, _ = wanted(model, hidden, labels, temperature=0.8)
    for ours, value in zip((output.log_probs, output.entropy), want):
        assert ours.shape == (LENGTH,) and torch.allclose(ours.double(), value[0], atol=1e-5) and ours.requires_grad
    assert output.hidden_states is hidden and output.logits is None
    left = copy.deepcopy(model)
    left.output_layer.register_forward_hook(lambda *_: None)
    model.config.logged = True
    assert {made(hidden, labels, module.fused_output_processor, call) for made in (model, left)} == {"host"}
    assert len([text for _, text in logged if "its own fused_output_processor" in text]) == 2


# ---- heads that predict further tokens ----

def further(module, model, hidden, k, **others):
    metrics = module.MTPLossLoggingHelper.logged = []
    given = {**dict(labels=labels_of(), loss_mask=(torch.arange(LENGTH) % 3 > 0).long().expand(BATCH, LENGTH).clone(),
                    output_weight=None, runtime_gather_output=None, is_training=True), **others}
    main = module.process_mtp_loss(hidden, output_layer=model.output_layer,
                                   compute_language_model_loss=model.compute_language_model_loss, config=model.config,
                                   **given)
    assert main.shape == (LENGTH, BATCH, DEPTH)
    grads = torch.autograd.grad(main.sum(), [hidden, model.output_layer.weight], allow_unused=True)
    return [main, *grads, *(value for each in metrics for value in each[:3])]


def test_heads_of_further_tokens(hosts, logged, monkeypatch):  # noqa: F811
    hosts("megatron")
    module = importlib.import_module("megatron.core.transformer.multi_token_prediction")
    model = Model(mtp_num_layers=2, mtp_loss_scaling_factor=0.3, mtp_detach_heads=False, calculate_per_token_loss=False)
    hidden = hidden_of(3 * LENGTH)
    own = further(module, model, hidden, 2)
    flp.install("megatron", untested=True)
    ours = further(module, model, hidden, 2)
    assert len(ours) == len(own) == 3 + 2 * 3
    for value, want in zip(ours, own):
        assert relative(value, want.double()) < 1e-5
    model.config.mtp_detach_heads = True
    assert further(module, model, hidden, 2)[2] is None
    logged.clear()
    whole = further(module, model, hidden, 2, runtime_gather_output=True)
    assert relative(whole[1], own[1].double()) < 1e-6 and "runtime_gather_output" in logged[0][1]
    monkeypatch.setitem(vars(model), "compute_language_model_loss", lambda labels, logits: labels * 0.0)
    assert not further(module, model, hidden, 2)[1][LENGTH:].any()  # the host's own, which calls it
    assert "compute_language_model_loss is" in logged[-1][1]
    plain = module.process_mtp_loss(hidden, None, None, model.output_layer, None, None, True, None, model.config)
    assert torch.equal(plain, hidden[:LENGTH])
    by_mode, reasons = counted("megatron", module.__name__ + ".process_mtp_loss")
    assert by_mode == {"recompute": 2} and list(reasons.values()) == [1, 1, 1] and _counts.NOT_ASKED in reasons


# ---- shards ----

def on_rank(rank, group, sequence_parallel):
    """A rank's half of a vocabulary and, under sequence parallelism, of the tokens."""
    model, hidden, labels = Model(), hidden_of(8).detach(), labels_of(8)
    half = VOCAB // 2
    shard = model.output_layer.weight.detach()[rank * half:(rank + 1) * half].clone()
    layer = standin.ColumnParallelLinear(shard, group, sequence_parallel, model.config)
    mine = (hidden[rank * 4:(rank + 1) * 4] if sequence_parallel else hidden).clone().requires_grad_()
    found = []
    for size in (None, 50):
        logprob = processor(vocab_size=size)(hidden_states=mine, output_layer=layer, labels=labels % 50)
        found += [logprob.detach(), *torch.autograd.grad(logprob.sum(), (mine, layer.weight))]
    return found


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_two_ranks(ranks, sequence_parallel):
    first, second = ranks.run(2, on_rank, sequence_parallel=sequence_parallel)
    model, hidden, labels = Model(), hidden_of(8), labels_of(8) % 50
    for i, size in ((0, None), (3, 50)):
        own = model(hidden, labels, processor(vocab_size=size))
        grads = torch.autograd.grad(own.sum(), (hidden, model.output_layer.weight))
        assert torch.allclose(first[i], own, atol=1e-5) and torch.equal(first[i], second[i])
        mine = torch.cat([first[i + 1], second[i + 1]]) if sequence_parallel else first[i + 1]
        assert relative(mine, grads[0].double()) < 1e-5
        assert relative(torch.cat([first[i + 2], second[i + 2]]), grads[1].double()) < 1e-5

