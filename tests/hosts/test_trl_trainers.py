"""TRL 1.16.0: steps of its trainers whose heads are fused, with all that they log, as they are and with flp in them."""
import pytest
import torch
from parity import installed, note_test

import flp

datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
WORDS = ["w%d" % i for i in range(120)]
STEPS = 3
CLOCKED = ("runtime", "per_second", "step_time")


def text(generator, words):
    return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (words,), generator=generator))


def rows_of(*columns):
    """Columns of texts, or of labels in turn."""
    generator = torch.Generator().manual_seed(3)
    return datasets.Dataset.from_list([
        {name: row % 3 > 0 if name == "label" else text(generator, 2 + row % 5) + " " for name in columns}
        for row in range(4 * STEPS)])


TRAINERS = {
    "SFT": ({}, ["prompt", "completion"]),
    "DPO": ({}, ["prompt", "chosen", "rejected"]),
    "DPO weighted": ({"use_weighting": True}, ["prompt", "chosen", "rejected"]),
    "KTO": ({}, ["prompt", "completion", "label"]),
    "Distillation": ({"beta": 0.3, "max_completion_length": 8}, ["prompt"]),
}
HEAD = "trl.kernels.chunked_logprob.ChunkedLogProbFunction.apply"
SEAMS = {"Distillation": "trl.trainer.distillation_trainer._chunked_divergence_loss"}  # all others': HEAD


def trainer_of(kind, folder, device):
    options, columns = TRAINERS[kind]
    models = {name: transformers.AutoModelForCausalLM.from_pretrained(folder / name).to(device)
              for name in ("model", *(["teacher_model"] if kind == "Distillation" else []))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(
        {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    name = kind.split()[0]
    arguments = getattr(trl, name + "Config")(
        output_dir=str(folder), use_cpu=device == "cpu", report_to=[], save_strategy="no", max_steps=STEPS,
        logging_steps=1, disable_tqdm=True, per_device_train_batch_size=4, optim="sgd", learning_rate=0.1, bf16=False,
        gradient_checkpointing=False, **options)
    return getattr(trl, name + "Trainer")(**models, args=arguments, train_dataset=rows_of(*columns),
                                          processing_class=tokenizer)


def trained(kind, folder, device):
    """(what each step logged, the weights behind the last)."""
    trainer = trainer_of(kind, folder, device)
    trainer.train()
    logged = [{name: value for name, value in step.items() if not any(word in name for word in CLOCKED)}
              for step in trainer.state.log_history]
    return logged, dict(trainer.model.named_parameters())


@pytest.mark.parametrize("kind", TRAINERS)
def test_steps_log_and_learn_the_same(kind, tmp_path, device):
    torch.manual_seed(0)
    for name, size in (("model", 32), ("teacher_model", 48)):
        transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=131, hidden_size=size, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, initializer_range=0.2)).save_pretrained(tmp_path / name)
    own, own_weights = trained(kind, tmp_path, device)
    note_test("trl")
    with installed("trl", "trl"):
        ours, our_weights = trained(kind, tmp_path, device)
        head = flp.installed(counts=True)["trl"][SEAMS.get(kind, HEAD)]
    assert sum(head["flp"].values()) >= STEPS and not head["own"]
    assert len(own) == len(ours) == STEPS + 1 and "entropy" in own[0], own[0]
    for host, flps in zip(own, ours):
        assert host.keys() == flps.keys()
        for name, value in host.items():
            assert flps[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for name, weight in own_weights.items():
        torch.testing.assert_close(our_weights[name], weight, rtol=1e-4, atol=1e-5)
