"""flp.CrossEntropyHead in transformers' Trainer and TRL's SFTTrainer: a step's loss and gradients, and what is refused."""
import contextlib
import copy
import importlib

import pytest
import torch
from parity import compare
from torch import nn

import flp

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
TOKENS, WIDTH, ROWS = 257, 32, 4


def model_of(device="cpu", **options):
    torch.manual_seed(0)
    config = {"vocab_size": TOKENS, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.2, **options}
    kind = ("Mixtral" if "num_local_experts" in options else "Llama")
    made = getattr(transformers, kind + "Config")(**config)
    return getattr(transformers, kind + "ForCausalLM")(made).to(device)


def rows_of(lengths=(3, 9, 0, 16)):
    """Rows of 20 tokens, of which so many at the front are no labels."""
    ids = torch.randint(3, TOKENS, (ROWS, 20), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    for row, length in enumerate(lengths):
        labels[row, :length] = -100
    return [{"input_ids": i.tolist(), "labels": l.tolist(), "attention_mask": [1] * 20} for i, l in zip(ids, labels)]


class Gradients(transformers.TrainerCallback):
    """What stands in .grad when the optimizer is called."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()
                      if parameter.grad is not None}


def options_of(folder, device, **options):
    return {"output_dir": str(folder), "use_cpu": device == "cpu", "report_to": [], "save_strategy": "no", "max_steps": 1,
            "logging_steps": 1, "disable_tqdm": True, "per_device_train_batch_size": 2, "optim": "sgd", "max_grad_norm": 0,
            "gradient_accumulation_steps": 2, "bf16": False, **options}


def transformers_trainer(model, folder, device, rows=None, more=(), **options):
    arguments = transformers.TrainingArguments(**options_of(folder, device, **options))
    rows = rows_of() if rows is None else rows
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, **dict(more))


def sft_trainer(model, folder, device, rows=None, more=(), **options):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    options = {"gradient_checkpointing": False, **options}
    arguments = trl.SFTConfig(**options_of(folder, device, max_length=None, **options))
    rows = datasets.Dataset.from_list(rows_of() if rows is None else rows)
    return trl.SFTTrainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer,
                          **dict(more))


TRAINERS = {"transformers": transformers_trainer, "sft": sft_trainer}
trainers = pytest.mark.parametrize("kind", TRAINERS)


def step(make, model, *arguments, head=contextlib.nullcontext, **options):
    """{"0": logged loss, "gradient ...": of each parameter} of one step over all rows, in two micro-batches."""
    trainer = make(copy.deepcopy(model), *arguments, **options)
    gradients = Gradients()
    trainer.add_callback(gradients)
    before = dict(vars(trainer)), dict(vars(trainer.model)), type(trainer.model)
    with head(trainer):
        loss = torch.tensor(trainer.train().training_loss)
    if head is not contextlib.nullcontext:
        check_restored(trainer, *before)
    return {"0": loss, **{"gradient " + name: gradient for name, gradient in gradients.found.items()}}


def both_steps(kind, *arguments, **options):
    """Steps of the trainer alone, and with flp."""
    return [step(TRAINERS[kind], *arguments, head=head, **options)
            for head in (contextlib.nullcontext, flp.CrossEntropyHead)]


def check_restored(trainer, attributes, of_model, kind):
    for name in ("model_accepts_loss_kwargs", "_loss_shifts_labels", "label_smoother"):
        assert vars(trainer)[name] is attributes[name]
    assert "compute_loss" not in vars(trainer) and "prediction_step" not in vars(trainer)
    assert type(trainer.model) is kind and type(trainer.model.lm_head) is nn.Linear
    assert vars(trainer.model).get("forward") is of_model.get("forward")
    assert trainer.model(input_ids=torch.ones(1, 3, dtype=torch.long, device=trainer.model.device)).logits is not None


def wanted(model, smoothing=0.0, rows=None):
    """The same in float64."""
    model = copy.deepcopy(model).double()
    fields = {name: torch.tensor([row[name] for row in rows or rows_of()], device=model.device)
              for name in ("input_ids", "labels")}
    scores = model(input_ids=fields["input_ids"]).logits[:, :-1].flatten(0, 1)
    loss = nn.functional.cross_entropy(scores, fields["labels"][:, 1:].flatten(), label_smoothing=smoothing)
    loss.backward()
    return {"0": loss.detach().cpu(), **{"gradient " + name: parameter.grad for name, parameter in model.named_parameters()}}


@trainers
@pytest.mark.parametrize("tied, lengths, options", [
    *((tied, (3, 9, 0, 16), {"label_smoothing_factor": factor}) for tied in (False, True) for factor in (0.0, 0.1)),
    (False, (20, 20, 20, 5), {}),  # of two micro-batches one has no labels; the other's tokens are all that count
    (False, (3, 9, 0, 16), {"gradient_checkpointing": True})], ids=str)
def test_a_step(kind, tied, lengths, options, tmp_path, device):
    model, rows = model_of(device, tie_word_embeddings=tied), rows_of(lengths)
    own, ours = both_steps(kind, model, tmp_path, device, rows, **options)
    want = wanted(model, options.get("label_smoothing_factor", 0.0), rows)
    assert own.keys() == ours.keys() == want.keys()
    compare(own, ours, want, torch.float32)


@trainers
def test_mixed_precision(kind, tmp_path, device):
    """accelerate puts a forward over the model's when training begins, and leaves it there."""
    model, want = model_of(device), wanted(model_of(device))
    trainers = [TRAINERS[kind](copy.deepcopy(model), tmp_path, device, bf16=True, learning_rate=0.0) for _ in range(2)]
    heads = contextlib.nullcontext(), flp.CrossEntropyHead(trainers[1])
    for _ in range(2):  # the second time there is accelerate's forward already
        own, ours = (gradients_of(trainer, head) for trainer, head in zip(trainers, heads))
        for name in own:
            errors = [float((of[name].double() - want[name]).norm() / want[name].norm()) for of in (ours, own)]
            assert errors[0] <= max(1.2e-2, 1.2 * errors[1]), (name, errors)
        outputs = [trainer.model(**batch_of(device)) for trainer in trainers]
        assert torch.equal(outputs[0].logits, outputs[1].logits) and torch.equal(outputs[0].loss, outputs[1].loss)
        if kind == "sft":
            fused = [trainer.model(**batch_of(device), fused_lm_head=True).log_probs for trainer in trainers]
            assert torch.equal(*fused)
        assert type(trainers[1].model) is type(model)


def gradients_of(trainer, head):
    seen = Gradients()
    trainer.add_callback(seen)
    with head:
        trainer.train()
    trainer.remove_callback(seen)
    return {"gradient " + name: gradient for name, gradient in seen.found.items()}


@trainers
def test_a_mixture_of_experts(kind, tmp_path, device):
    """Its balancing loss, which transformers and TRL average over micro-batches each in its own way."""
    model = model_of(device, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
                     router_aux_loss_coef=0.5)
    own, ours = both_steps(kind, model, tmp_path, device)
    assert float(own["0"] - step(TRAINERS[kind], model_without_balance(model), tmp_path, device)["0"]) > 0.1
    for name in own:
        torch.testing.assert_close(ours[name], own[name], rtol=1e-4, atol=1e-6)


def model_without_balance(model):
    model = copy.deepcopy(model)
    model.config.router_aux_loss_coef = model.router_aux_loss_coef = 0.0
    return model


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sft_logs_what_it_does_without(smoothing, tmp_path, device):
    model = model_of(device, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
                     router_aux_loss_coef=0.0 if smoothing else 0.5)  # which TRL does not add to a smoothed loss
    rows, logged = rows_of(), []
    for row in rows:  # of the last five labels the best tokens
        best = model(input_ids=torch.tensor([row["input_ids"]], device=device)).logits.argmax(-1)[0]
        row["labels"][-5:] = best[-6:-1].tolist()
    for head in (contextlib.nullcontext, flp.CrossEntropyHead):
        trainer = sft_trainer(copy.deepcopy(model), tmp_path, device, rows, label_smoothing_factor=smoothing)
        with head(trainer):
            trainer.train()
            trainer.evaluate()
        logged.append({name: value for step in trainer.state.log_history for name, value in step.items()
                       if not name.endswith(("runtime", "per_second"))})
    own, ours = logged
    assert own.keys() == ours.keys() >= {"entropy", "mean_token_accuracy", "num_tokens", "eval_entropy"}
    assert 0 < own["mean_token_accuracy"] < 1
    assert ours == pytest.approx(own, rel=1e-4)


@trainers
def test_evaluation(kind, tmp_path, device):
    """The loss alone comes of the head; what asks for scores is the trainer's own, and the head is there again."""
    seen = []

    def compute_metrics(prediction):
        seen.append(prediction.predictions)
        return {}

    for more in ((), {"compute_metrics": compute_metrics}.items()):
        trainer = TRAINERS[kind](model_of(device), tmp_path, device, more=more)
        own = trainer.evaluate()["eval_loss"]
        with flp.CrossEntropyHead(trainer):
            assert abs(trainer.evaluate()["eval_loss"] - own) < 1e-5
            assert trainer.model(**batch_of(device)).logits is None
            assert trainer.predict(trainer.eval_dataset).predictions.shape == (ROWS, 20, TOKENS)
    assert len(seen) == 3 and all(scores.shape == (ROWS, 20, TOKENS) for scores in seen)


def batch_of(device):
    return {name: torch.tensor([row[name] for row in rows_of()], device=device) for name in ("input_ids", "labels")}


def test_shift_labels(device):
    model, batch = model_of(device), batch_of(device)
    batch["shift_labels"] = batch["labels"].flip(-1)
    own = model(**batch).loss
    with flp.CrossEntropyHead(model):
        torch.testing.assert_close(model(**batch).loss, own)


def custom(trainer):
    """A trainer of that kind whose user has written compute_loss."""
    made = copy.copy(trainer)
    made.__class__ = type("Own", (type(trainer),), {"compute_loss": lambda self, *given, **more: None})
    return made


def changed(trainer, where=None, **values):
    made = copy.copy(trainer)
    if where is not None:
        setattr(made, where, copy.copy(getattr(made, where)))
    for name, value in values.items():
        setattr(getattr(made, where) if where else made, name, value)
    return made


def test_refusals_of_trainers(tmp_path, device):
    trainer = transformers_trainer(model_of(device), tmp_path, device, label_smoothing_factor=0.1)
    for refused, message, given in (
            (changed(trainer, compute_loss_func=min), r"trainer.compute_loss_func is given.*accepted: None", {}),
            (changed(trainer, "args", use_liger_kernel=True), "trainer.args.use_liger_kernel is True", {}),
            (changed(trainer, "args", _n_gpu=2), "trainer.args.n_gpu is 2, in torch.nn.DataParallel", {}),
            (trainer, r"label_smoothing is 0.2 \(accepted: 0.1, label_smoothing_factor", {"label_smoothing": 0.2}),
            (trainer, r"ignore_index is 0 \(accepted: -100 with a trainer", {"ignore_index": 0})):
        with pytest.raises((flp.UnsupportedError, ValueError), match=message):
            flp.CrossEntropyHead(refused, **given)
    assert flp.CrossEntropyHead(trainer, label_smoothing=0.1) and trainer.label_smoother is not None


def test_refusals_of_trls_trainers(tmp_path, device):
    trainer = sft_trainer(model_of(device), tmp_path, device)
    preference = changed(trainer)
    preference.__class__ = importlib.import_module("trl.trainer.dpo_trainer").DPOTrainer
    for refused, message in (
            (changed(trainer, "args", loss_type="dft"), r"trainer.args.loss_type is 'dft' \(accepted: 'nll'\)"),
            (custom(trainer), "trainer.compute_loss is that of Own, over SFTTrainer of TRL"),
            (preference, "trainer.compute_loss is that of DPOTrainer, over DPOTrainer of TRL")):
        with pytest.raises(flp.UnsupportedError, match=message):
            flp.CrossEntropyHead(refused)


def test_a_loss_of_the_callers_own_is_refused(tmp_path, device):
    model = model_of(device)
    trainer = transformers_trainer(model, tmp_path, device)
    head, ids = flp.CrossEntropyHead(model), torch.arange(8, device=device)[None]
    model.loss_function = lambda logits, labels, **_: logits.sum() * 0
    for made in (model, trainer):
        with pytest.raises(flp.UnsupportedError, match="model.loss_function is .*lambda.* .accepted: ForCausalLMLoss, of"):
            flp.CrossEntropyHead(made)
    with head, pytest.raises(flp.UnsupportedError, match="model.loss_function is "):
        model(input_ids=ids, labels=ids)
    model.loss_function = transformers.loss.loss_utils.ForMaskedLMLoss
    with pytest.raises(flp.UnsupportedError, match="model.loss_function is ForMaskedLMLoss"):
        flp.CrossEntropyHead(model)


@pytest.mark.parametrize("kind, message", [
    ("T5ForConditionalGeneration", "model is an encoder and decoder"), ("BertForMaskedLM", "model.loss_type is 'ForMaskedLM'")])
def test_models_with_other_labels_are_refused(kind, message):
    config = getattr(transformers, kind.partition("For")[0] + "Config")
    sizes = {"d_model": 32, "d_ff": 64, "num_layers": 1} if "T5" in kind else {"hidden_size": 36, "intermediate_size": 64}
    model = getattr(transformers, kind)(config(vocab_size=64, num_hidden_layers=1, **sizes) if "Bert" in kind else
                                        config(vocab_size=64, **sizes))
    with pytest.raises(flp.UnsupportedError, match=message):
        flp.CrossEntropyHead(model)
