"""SGLang 0.5.23: log-probabilities of input tokens, by its own LogitsProcessor without a server; and its plug-ins."""
import importlib.metadata
import types

import pytest
import torch
from parity import DTYPES, both

import flp
from flp.adapters import sglang

logits_processor = pytest.importorskip("sglang.srt.layers.logits_processor", exc_type=ImportError)
from sglang.srt import plugins  # noqa: E402
from sglang.srt.layers.logprob_processor import InputLogprobProcessor  # noqa: E402
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: E402

VOCAB, PADDED, DEPTH = 4096, 4160, 256
# Of four requests: the tokens in this step, and how many of these come before the first that is asked for.
LENGTHS, STARTS = (40, 7, 90, 5), (0, 7, 12, 0)
COUNTS = [length - start for length, start in zip(LENGTHS, STARTS)]
TOP, IDS = [5, 3, 20, 0], [None, [1], [3, 4000, 7], [9]]
LISTS = {"extend_return_top_logprob": True, "top_logprobs_nums": TOP,
         "extend_token_ids_logprob": True, "token_ids_logprobs": IDS}
FORWARD = "sglang.srt.layers.logprob_processor.InputLogprobProcessor.forward"


class Step:
    """One step: hidden states, a head, and in scored the rows whose scores SGLang made."""

    def __init__(self, dtype, device, logit_scale=None, final_logit_softcapping=None, use_fp32_lm_head=False,
                 chunk=None):
        draw = torch.Generator().manual_seed(0)
        hidden, weight = (torch.randn(rows, DEPTH, generator=draw).to(device) for rows in (sum(LENGTHS), PADDED))
        self.hidden, self.weight = hidden.to(dtype), (0.2 * weight).to(dtype)
        self.tokens = torch.randint(VOCAB, (sum(COUNTS),), generator=draw).to(device)
        self.scored = []
        self.processor = logits_processor.LogitsProcessor.__new__(logits_processor.LogitsProcessor)
        torch.nn.Module.__init__(self.processor)  # its own __init__ asks a server's settings
        one_rank = ("do_tensor_parallel_all_gather", "do_tensor_parallel_all_gather_dp_attn", "use_attn_tp_group")
        vars(self.processor).update(
            dict.fromkeys(one_rank, False), vocab_size=VOCAB, logit_scale=logit_scale, rl_on_policy_target=None,
            final_logit_softcapping=final_logit_softcapping, use_fp32_lm_head=use_fp32_lm_head,
            use_fp32_lm_head_output=False, expected_aux_hidden_states=None, keep_last_hidden_states=False,
            input_logprob_processor=InputLogprobProcessor(VOCAB), _scatter_dp_attn_logits=self._scored)
        if chunk:
            vars(self.processor.input_logprob_processor).update(enable_logprobs_chunk=True, logprobs_chunk_size=chunk)

    def _scored(self, logits, *others):
        self.scored.append(len(logits))
        return logits

    def __call__(self, **lists):
        self.scored.clear()
        metadata = logits_processor.LogitsMetadata(
            forward_mode=ForwardMode.EXTEND, extend_return_logprob=True, extend_seq_lens_cpu=list(LENGTHS),
            extend_logprob_start_lens_cpu=list(STARTS), extend_logprob_pruned_lens_cpu=list(COUNTS),
            extend_input_logprob_token_ids_gpu=self.tokens, **lists)
        head = types.SimpleNamespace(weight=self.weight, quant_method=UnquantizedEmbeddingMethod())
        with torch.inference_mode():
            return self.processor(None, self.hidden, head, metadata), list(self.scored)

    def exact(self):
        """log-softmax of the rows that are asked for, float64"""
        parts = [part[start:] for part, start in zip(self.hidden.split(LENGTHS), STARTS)]
        scores = torch.cat(parts).double() @ self.weight[:VOCAB].double().T * (self.processor.logit_scale or 1.0)
        cap = self.processor.final_logit_softcapping
        return (cap * torch.tanh(scores / cap) if cap else scores).log_softmax(-1)


def error(found, exact):
    return float((torch.as_tensor(found, device=exact.device).double() - exact).abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"chunk": 32}, {"logit_scale": 0.5, "final_logit_softcapping": 6.0},
                                     {"use_fp32_lm_head": True}], ids=str)
def test_input_tokens(monkeypatch, dtype, options, device):
    monkeypatch.setattr(logits_processor, "_is_cpu", device == "cpu")  # else its softcap is a kernel of a GPU
    step = Step(dtype, device, **options)
    (own, own_scored), (ours, scored) = both("sglang", step)
    exact = step.exact().gather(1, step.tokens.unsqueeze(1))[:, 0]
    assert sum(own_scored) == sum(COUNTS) + COUNTS.count(0) and scored == [len(LENGTHS)]
    assert error(ours.input_token_logprobs, exact) < 1e-5
    is_rounded = dtype is torch.bfloat16 and "use_fp32_lm_head" not in options
    assert (1e-3 if is_rounded else 0) < error(own.input_token_logprobs, exact) < (0.1 if is_rounded else 1e-4)
    assert torch.equal(own.next_token_logits, ours.next_token_logits)
    assert ours.input_top_logprobs_val is None and ours.input_token_ids_logprobs_val is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_lists(dtype, device):
    """Of the best tokens, and of tokens by id: SGLang's shapes, and float64's tokens in every row."""
    step = Step(dtype, device)
    (own, _), (ours, scored) = both("sglang", lambda: step(**LISTS))
    assert scored == [len(LENGTHS)] and own.input_token_ids_logprobs_idx == ours.input_token_ids_logprobs_idx
    parts, differs = step.exact().split(COUNTS), 0
    for at, (part, k, ids) in enumerate(zip(parts, TOP, IDS)):
        values, indices = part.topk(k)
        assert ours.input_top_logprobs_idx[at] == indices.tolist()
        differs += sum(row != best for row, best in zip(own.input_top_logprobs_idx[at], indices.tolist()))
        for name, exact in (("top_logprobs_val", values), ("token_ids_logprobs_val", part[:, ids or []])):
            found, theirs = (getattr(of, "input_" + name)[at] for of in (ours, own))
            assert [len(row) for row in found] == [len(row) for row in theirs]
            assert not found or not exact.numel() or error(found, exact) < 1e-5
    assert (differs > 0) == (dtype is torch.bfloat16)


@pytest.fixture
def plug_in(monkeypatch):
    """load_plugins finds flp's plug-in alone, as in a process that starts; afterwards SGLang is as it was."""
    point = importlib.metadata.EntryPoint("flp", "flp_plugins:sglang", plugins.GENERAL_PLUGINS_GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    monkeypatch.setenv("FLP_SGLANG", "prompt")
    yield
    flp.uninstall("sglang")
    HookRegistry.reset()


def test_plug_in_under_the_hook_of_another(plug_in, device):
    step, calls, own = Step(torch.bfloat16, device), [], InputLogprobProcessor.forward
    HookRegistry.register(FORWARD, lambda inner, *given, **named: calls.append(1) or inner(*given, **named),
                          HookType.AROUND)
    plugins.load_plugins()
    result, scored = step(**LISTS)
    assert calls == [1] and scored == [len(LENGTHS)]
    assert sum(flp.installed(counts=True)["sglang"][FORWARD]["flp"].values()) == 1
    InputLogprobProcessor.forward = InputLogprobProcessor.forward.__wrapped__  # the registry takes no hook out
    flp.uninstall("sglang")
    assert InputLogprobProcessor.forward is own and error(
        result.input_token_logprobs, step.exact().gather(1, step.tokens.unsqueeze(1))[:, 0]) < 1e-5


def test_plug_in_ends_the_process_of_an_unknown_sglang_where_asked(plug_in, monkeypatch):
    monkeypatch.setenv("FLP_SGLANG_STRICT", "1")
    monkeypatch.setattr(sglang, "HOST", types.SimpleNamespace(**{**vars(sglang.HOST), "seams": [
        types.SimpleNamespace(**{**vars(seam), "source": "0" * 16}) for seam in sglang.HOST.seams]}))
    with pytest.raises(SystemExit, match="has hash .* Nothing was replaced"):
        plugins.load_plugins()
    assert flp.installed() == {}
