"""Runs vLLM in a process of its own, as test_vllm.py asks: python vllm_engine.py engine RANKS FOLDER, or functions

engine     a random Qwen3 over prompts that are scored in chunks and continued, then what came of it scored again ->
           FOLDER/engine.pt: what vLLM reports and, of each rank of a tensor parallel group, its part of the head and
           what each call of flp was given and gave, where flp runs
functions  what runner V2, which needs a GPU, has no Triton in: the workers of its prompts, its sampling step
"""
import random
import sys
import types
from pathlib import Path

import numpy as np
import torch

VOCAB, DEPTH = 4096, 256


def make_model(folder):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=VOCAB, hidden_size=DEPTH, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=False)).bfloat16()
    with torch.no_grad():
        model.lm_head.weight.mul_(8)  # scores as far apart as those of a trained model
    model.save_pretrained(folder)


def record(worker):
    """From now on calls of flp in the adapter, if that is installed in a worker's process, are kept: (hidden, target,
    logprob)."""
    adapter = sys.modules.get("flp.adapters.vllm")
    for name in ("linear_logprob", "parallel_logprob") if adapter else ():
        def recording(hidden, own=getattr(adapter, name), **options):
            results = own(hidden, **options)
            worker.calls.append((hidden.clone(), options["target"].clone(), results[0].clone()))
            return results

        setattr(adapter, name, recording)
    worker.calls = []


def kept(worker):
    flp = sys.modules.get("flp")
    return {"calls": worker.calls, "counts": flp and flp.installed(counts=True)["vllm"],
            "weight": worker.get_model().lm_head.weight.detach()}


def reported(outputs):
    """{"prompt", "sampled": [[{id: (logprob, rank)} of a position] of a request], "tokens"}"""
    def plain(positions):
        return [{token: (found.logprob, found.rank) for token, found in position.items()}
                for position in positions or () if position]

    return {"prompt": [plain(output.prompt_logprobs) for output in outputs],
            "sampled": [plain(output.outputs[0].logprobs) for output in outputs],
            "given": [list(output.prompt_token_ids) for output in outputs],
            "tokens": [list(output.outputs[0].token_ids) for output in outputs]}


def engine(ranks, folder):
    from vllm import LLM, SamplingParams

    make_model(folder / "model")
    llm = LLM(str(folder / "model"), skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=1024,
              max_num_seqs=8, max_num_batched_tokens=128, enable_prefix_caching=False, tensor_parallel_size=ranks)
    llm.collective_rpc(record)
    draw = random.Random(1)

    def run(prompts, **options):
        sampling = SamplingParams(temperature=0.7, detokenize=False, ignore_eos=True, **options)
        return reported(llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False))

    first = run([[draw.randrange(3, VOCAB) for _ in range(n)] for n in (37, 128, 301)], max_tokens=8, prompt_logprobs=3,
                logprobs=2)
    again = run([given + tokens for given, tokens in zip(first["given"], first["tokens"])], max_tokens=1,
                prompt_logprobs=0)
    torch.save({"first": first, "again": again, "ranks": llm.collective_rpc(kept)}, folder / "engine.pt")


def functions():
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.plugins import load_general_plugins

    import flp

    load_general_plugins()
    assert "vllm" in flp.installed()
    with set_current_vllm_config(VllmConfig()):
        from vllm.model_executor.layers.logits_processor import LogitsProcessor
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        layer = LogitsProcessor(VOCAB)
    torch.manual_seed(0)
    head = types.SimpleNamespace(weight=torch.randn(VOCAB + 64, DEPTH).bfloat16() * 0.3, tp_size=1,
                                 quant_method=UnquantizedEmbeddingMethod(), cpu_linear=torch.nn.functional.linear)
    hidden, weight = torch.randn(301, DEPTH).bfloat16(), head.weight[:VOCAB]
    logp = torch.log_softmax(hidden.double() @ weight.double().t(), -1)
    for k in (1, 16, 512):
        ids_a_position(lambda rows: layer(head, rows), hidden, weight, logp, k)
    prompts_of_a_step(lambda rows: layer(head, rows), hidden, weight, logp)
    sampling_steps(lambda rows: layer(head, rows), hidden, weight, logp)
    print("good")


def worker():
    import vllm.v1.worker.gpu.sample.prompt_logprob as prompts

    prompts.async_tensor_h2d = lambda data, device, dtype=None: torch.as_tensor(np.array(data), dtype=dtype)
    return prompts, prompts.PromptLogprobsWorker(4, torch.device("cpu"))


def step(done, count, length):
    """An InputBatch of requests that schedule count tokens behind done of theirs."""
    return types.SimpleNamespace(
        req_ids=["r%d" % at for at in range(len(count))], idx_mapping=None, num_tokens=sum(count), query_start_loc=None,
        idx_mapping_np=np.arange(len(count)), num_computed_prefill_tokens_np=np.array(done),
        num_scheduled_tokens=np.array(count), prefill_len_np=np.array(length),
        query_start_loc_np=np.cumsum([0, *count]))


def ids_a_position(compute_logits, hidden, weight, logp, k):
    """prompt_logprob_token_ids of a prompt of 301 tokens from its row 100 on, prefilled in three chunks."""
    import flp

    _, scorer = worker()
    ids = np.random.RandomState(k).randint(0, VOCAB, (200, k)).astype(np.int32)
    ids[3, k // 2] = ids[150, -1] = -1
    scorer.add_request("r0", 0, types.SimpleNamespace(prompt_logprobs=None, prompt_logprob_token_ids=ids,
                                                      prompt_logprob_start=100))
    found = {}
    for start, end in ((0, 128), (128, 256), (256, 301)):
        found.update(scorer.compute_prompt_token_id_logprobs(
            compute_logits, hidden[start:end], step([start], [end - start], [301]), np.array([301])))
    (got,), pad, ids = found.values(), torch.tensor(ids < 0), torch.tensor(ids).long().clamp_min(0)
    assert got.shape == (200, k) and torch.equal(got == -float("inf"), pad)
    assert (got.double() - logp[100:300].gather(1, ids))[~pad].abs().max() < 1e-5
    assert torch.equal(got[~pad], flp.linear_logprob(hidden[100:300], weight, ids)[~pad])


def prompts_of_a_step(compute_logits, hidden, weight, logp):
    """Three requests share a step, of which the first and the last ask: for 20 and for no best tokens."""
    import flp

    module, scorer = worker()
    tokens = torch.randint(VOCAB, (301,))
    module.get_prompt_logprobs_token_ids = lambda *_: tokens
    for at, k in ((0, 20), (2, 0)):
        scorer.add_request("r%d" % at, at, types.SimpleNamespace(prompt_logprobs=k, prompt_logprob_token_ids=None))
    lens = np.array([100, 100, 101, 0])
    of_step = step([0, 0, 0], [100, 100, 101], lens[:3])
    found = scorer.compute_prompt_logprobs(compute_logits, hidden, of_step, None, None, lens)
    assert found.keys() == {"r0", "r2"}
    for name, rows, k in (("r0", slice(0, 99), 20), ("r2", slice(200, 300), 0)):
        ids, values, ranks = found[name][:3]
        assert ids.shape == values.shape == (rows.stop - rows.start, 1 + k) and torch.equal(ids[:, 0], tokens[rows])
        assert (values.double() - logp[rows].gather(1, ids)).abs().max() < 1e-5
        assert (values[:, 1:].double() - logp[rows].topk(k).values).abs().max() < 1e-5 if k else True
        mine = logp[rows].gather(1, ids[:, :1])
        assert ((logp[rows] > mine + 1e-5).sum(1) < ranks).all() and (ranks <= (logp[rows] >= mine - 1e-5).sum(1)).all()
        assert torch.equal(values[:, 0], flp.linear_logprob(hidden, weight, tokens)[rows])


def sampling_steps(compute_logits, hidden, weight, logp):
    """Steps of 1, 7, 64 and 229 rows, by runner V2's own sample with a sampler that is given its tokens."""
    import vllm.v1.worker.gpu.model_runner as runner
    import vllm.v1.worker.gpu.sample.sampler as sampler

    import flp

    tokens, found = torch.randint(VOCAB, (301,)), []
    for start, end in ((0, 1), (1, 8), (8, 72), (72, 301)):
        class Sampler:
            get_logprobs_dims = staticmethod(lambda at: (2, 0))
            sampling_states = types.SimpleNamespace(num_logprobs=np.full(301, 2))

            def __call__(self, logits, batch):
                found.append(sampler.compute_topk_scores(logits, 2, tokens[start:end], None, self))
                return types.SimpleNamespace(num_sampled=None, num_rejected=None)

        model = types.SimpleNamespace(compute_logits=compute_logits)
        runner.GPUModelRunner.sample(
            types.SimpleNamespace(batch_sharder=None, rejection_sampler=None, sampler=Sampler(), model=model),
            hidden[start:end], types.SimpleNamespace(
                logits_indices=torch.arange(end - start), idx_mapping_np=np.arange(end - start), num_draft_tokens=0,
                num_reqs=end - start), None)
    got = torch.cat([each.logprobs for each in found])
    ids = torch.cat([each.logprob_token_ids for each in found])
    assert torch.equal(got[:, 0], flp.linear_logprob(hidden, weight, tokens))
    assert (got[:, 1:].double() - logp.topk(2).values).abs().max() < 1e-5
    assert (got.double() - logp.gather(1, ids)).abs().max() < 1e-5


if __name__ == "__main__":
    engine(int(sys.argv[2]), Path(sys.argv[3])) if sys.argv[1] == "engine" else functions()
