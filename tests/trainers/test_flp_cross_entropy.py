"""flp.cross_entropy beside torch.nn.functional.cross_entropy and Liger's formula, and flp.CrossEntropyHead beside a model's
own loss: values, gradients, averages, trainers and refusals."""
import functools

import pytest
import torch
import torch.nn.functional as F

import flp
from flp._library import _plans
from flp_standin_lm import IDS, TinyLM, capped

V, D = 97, 24


def operands(seed=0, shape=(3, 7)):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*shape, D, generator=generator, requires_grad=True)
    weight = (0.5 * torch.randn(V, D, generator=generator)).requires_grad_()
    bias = torch.randn(V, generator=generator, requires_grad=True)
    target = torch.randint(V, shape, generator=generator)
    target.view(-1)[[3, 11]] = -100
    return hidden, weight, bias, target


def scores_of(hidden, weight, bias, softcap):
    scores = F.linear(hidden, weight, bias).flatten(0, -2)
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_is_torchs(smoothing, reduction, softcap):
    hidden, weight, bias, target = operands()
    got = flp.cross_entropy(hidden, weight, target, bias, label_smoothing=smoothing, reduction=reduction, softcap=softcap)
    want = F.cross_entropy(scores_of(hidden, weight, bias, softcap), target.flatten(), label_smoothing=smoothing,
                           reduction=reduction).reshape(got.shape)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-6)
    upstream = torch.rand(want.shape, generator=torch.Generator().manual_seed(1))
    for a, b in zip(*(torch.autograd.grad(loss, (hidden, weight, bias), upstream) for loss in (got, want))):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


# ---- heads

MODELS = {"plain": {}, "bias": {"bias": True}, "tied": {"tied": True},
          "softcap": {"after": functools.partial(capped, 5.0), "final_logit_softcapping": 5.0}}


@pytest.mark.parametrize("name", MODELS)
def test_a_models_loss(name):
    model, labels = TinyLM(**MODELS[name]), IDS.clone()
    labels[0, :4] = -100
    own = model(IDS, labels=labels)
    own.loss.backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    with flp.CrossEntropyHead(model):
        out = model(IDS, labels=labels)
        out.loss.backward()
        plain = model(IDS)
    assert out.logits is None and out.aux_loss is not None and plain.logits.shape == (*IDS.shape, 257)
    torch.testing.assert_close(out.loss, own.loss)
    for parameter_name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[parameter_name], atol=1e-6, rtol=1e-5)
    assert model(IDS, labels=labels).logits is not None


def test_a_step_is_counted_in_the_mode_of_its_layout(monkeypatch):
    model, layout = TinyLM(), _plans.Plan.layout

    def streamed(*arguments):
        found = layout(*arguments)
        found.mode = 6  # FLP_MODE_STREAM, in which a GPU runs it
        return found

    monkeypatch.setattr(_plans.Plan, "layout", streamed)
    with flp.CrossEntropyHead(model):
        model(IDS, labels=IDS)
        assert flp.installed(counts=True)["CrossEntropyHead"]["TinyLM"]["flp"] == {"eager stream": 1}


def test_num_items_in_batch():
    model = TinyLM()
    with flp.CrossEntropyHead(model, label_smoothing=0.1, z_loss=1e-3):
        whole = model(IDS, labels=IDS).loss
        items = torch.tensor(IDS[:, 1:].numel())
        parts = [model(IDS[i:i + 1], labels=IDS[i:i + 1], num_items_in_batch=items).loss for i in range(3)]
    torch.testing.assert_close(sum(parts), whole)


class Trainer:
    """What transformers' Trainer does with a model's loss, in short: accumulation over micro-batches."""

    def __init__(self, model):
        self.model, self.model_accepts_loss_kwargs = model, False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        more = {"num_items_in_batch": num_items_in_batch} if self.model_accepts_loss_kwargs else {}
        inputs = {name: value for name, value in inputs.items() if name != "use_cache"}  # which TinyLM has not
        outputs = model(**inputs, **more)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def train(self, batches):
        items = sum((labels[:, 1:] != -100).sum() for labels in batches)
        for labels in batches:
            loss = self.compute_loss(self.model, {"input_ids": IDS[:len(labels)], "labels": labels}, num_items_in_batch=items)
            (loss if self.model_accepts_loss_kwargs else loss / len(batches)).backward()


class SFTTrainer(Trainer):
    """Of its model's fused head."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs, fused_lm_head=True)
        SFTTrainer.seen.append(outputs)
        return -outputs.log_probs.sum() / num_items_in_batch


SFTTrainer.__module__ = "trl.trainer.sft_trainer"


@pytest.mark.parametrize("kind", [Trainer, SFTTrainer])
def test_trainers_accumulate_by_tokens(kind):
    """Micro-batches with unlike numbers of tokens: the gradient is that of the mean over all of them."""
    batches = [IDS.clone(), IDS[:1].clone()]
    batches[0][:, 3:] = -100
    model = TinyLM()
    logits = [model(IDS[:len(labels)]).logits[:, :-1].flatten(0, 1) for labels in batches]
    F.cross_entropy(torch.cat(logits), torch.cat([labels[:, 1:].flatten() for labels in batches])).backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    trainer, SFTTrainer.seen = kind(model), []
    with flp.CrossEntropyHead(trainer):
        trainer.train(batches)
    for labels, scores, seen in zip(batches, logits, SFTTrainer.seen):
        shape, mask = labels.shape, F.pad(labels[:, 1:], (0, 1), value=-100) != -100
        best = F.pad(scores.argmax(-1).view(shape[0], -1) == labels[:, 1:], (0, 1)) & mask
        entropy = F.pad(torch.distributions.Categorical(logits=scores).entropy().view(shape[0], -1), (0, 1)) * mask
        assert torch.equal(seen.label_mask, mask) and torch.equal(seen.is_top1, best)
        torch.testing.assert_close(seen.entropy, entropy)
    assert len(SFTTrainer.seen) == len(batches) * (kind is SFTTrainer)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], atol=1e-6, rtol=1e-5)
    assert vars(trainer) == {"model": model, "model_accepts_loss_kwargs": False}


def ForCausalLMLoss(logits, labels, **_):
    return logits.sum() * 0


def test_a_loss_of_the_callers_own_is_refused():
    """model.loss_function = mine, as transformers takes it, when the head is made and at each call."""
    model = TinyLM()
    with flp.CrossEntropyHead(model):
        model.loss_function = ForCausalLMLoss
        with pytest.raises(flp.UnsupportedError, match="^model.loss_function is ForCausalLMLoss .accepted: ForCausalLMLoss, of transformers"):
            model(IDS, labels=IDS)
        assert model(IDS).logits.shape[-1] == 257
    for made in (model, Trainer(model)):
        with pytest.raises(flp.UnsupportedError, match="^model.loss_function is ForCausalLMLoss "):
            flp.CrossEntropyHead(made)
