"""OpenRLHF 0.11.2: the Actor's forward over a small Llama."""
import pytest
import torch
from parity import DTYPES, bare, both, compare, stub, stubs, with_gradients

transformers = pytest.importorskip("transformers")
from transformers import modeling_flash_attention_utils as flash_attention  # noqa: E402

bare("openrlhf", "openrlhf.models")
# flash_attn's functions for padding, as transformers has them for those who lack it.
BERT_PADDING = stub(index_first_axis=lambda tensor, indices: tensor[indices], pad_input=flash_attention._pad_input,
                    unpad_input=flash_attention._unpad_input, rearrange=lambda tensor, _pattern: tensor.flatten(0, 1))
with stubs(deepspeed=stub(), flash_attn=stub(), flash_attn__bert_padding=BERT_PADDING, flash_attn__utils=stub(),
           flash_attn__utils__distributed=stub()):
    from openrlhf.models import ring_attn_utils
    from openrlhf.models.actor import Actor

pytestmark = pytest.mark.usefixtures("eager")  # the host's compute_entropy is compiled


def actor_of(device, dtype, temperature, packing):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                      num_attention_heads=4, initializer_range=0.2)
    actor = Actor(transformers.LlamaForCausalLM(config).to(device, dtype), temperature=temperature)
    actor.packing_samples = packing
    return actor


def batch_of(device):
    torch.manual_seed(1)
    ids = torch.randint(0, 1000, (4, 20), device=device)
    mask = torch.ones_like(ids)
    mask[1, :4] = mask[2, :7] = 0
    actions = torch.ones(4, 8, dtype=torch.long, device=device)
    actions[0, 5:] = 0
    return ids, mask, actions


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("asked", ["actions", "entropy", "all tokens"])
def test_forward(dtype, temperature, packing, asked, device):
    actor = actor_of(device, dtype, temperature, packing)
    ids, mask, actions = batch_of(device)
    inputs = [actor.model.lm_head.weight, actor.model.model.layers[0].mlp.up_proj.weight]
    hidden = []
    actor.model.model.norm.register_forward_hook(lambda module, arguments, output: hidden.append(output))

    def call():
        if asked == "all tokens":
            results = [actor(ids, attention_mask=mask, return_logprobs=True) * mask[:, 1:] * mask[:, :-1]]
        elif asked == "actions":
            results = [actor(ids, actions, mask)]
        else:
            logprob, output = actor(ids, actions, mask, return_output=True, return_entropy=True)
            results = [logprob, output.entropy[:, -8:] * actions]
        return with_gradients(results, [*inputs, hidden[-1]])

    own, ours = both("openrlhf", call)
    want = in_double(actor, ids, mask, actions, asked)
    compare(own, ours, with_gradients(want, [*inputs, hidden[-1]]), dtype, trunks=["gradient 1"])


def in_double(actor, ids, mask, actions, asked):
    """The results that are asked for, from the model's own hidden states in float64."""
    given, positions, padding = ids, (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1), None
    if actor.packing_samples:
        given, positions, _, *padding = ring_attn_utils.unpad_and_slice_tensor(ids, mask, None)
    hidden = actor.model.model(given, attention_mask=None if padding else mask, position_ids=positions)[0]
    if padding:
        hidden = flash_attention._pad_input(hidden[0], padding[1], *ids.shape)
    scores = hidden.double() @ actor.model.lm_head.weight.double().t() / actor.temperature
    logp = scores.log_softmax(-1)[:, :-1]
    logprob, entropy = logp.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1), -(logp.exp() * logp).sum(-1)
    return {"all tokens": [logprob * mask[:, 1:] * mask[:, :-1]], "actions": [logprob[:, -8:] * actions],
            "entropy": [logprob[:, -8:] * actions, entropy[:, -8:] * actions]}[asked]


def test_a_head_in_lora_is_the_hosts(device, left_to_host):
    peft = pytest.importorskip("peft")
    actor = actor_of(device, torch.float32, 1.0, False)
    actor.model = peft.get_peft_model(actor.model, peft.LoraConfig(target_modules=["lm_head"], init_lora_weights=False))
    ids, mask, actions = batch_of(device)
    own, ours = both("openrlhf", lambda: actor(ids, actions, mask))
    assert torch.equal(own, ours)
    assert len(left_to_host) == 1 and "not torch.nn.Linear" in left_to_host.pop()


def test_a_model_that_caps_its_scores_is_the_hosts(device, left_to_host):
    config = transformers.Gemma2Config(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
                                       num_attention_heads=4, num_key_value_heads=4, head_dim=16, pad_token_id=0)
    actor = Actor(transformers.Gemma2ForCausalLM(config).to(device))
    actor.packing_samples = False
    ids, mask, actions = batch_of(device)
    own, ours = both("openrlhf", lambda: actor(ids, actions, mask))
    assert torch.equal(own, ours)
    assert len(left_to_host) == 1 and "softcap" in left_to_host.pop()
