"""Uses of flp, right and wrong, for test_types.py: what a type checker must say stands beside each line."""
import flp
import flp.adapters
import torch

h: torch.Tensor = torch.zeros(4, 8)
entropy: bool = bool(h.sum())

reveal_type(flp.linear_logprob(h, h, h))  # says: torch.Tensor
reveal_type(flp.linear_logprob(h, h, h, temperature=h, budget="64M"))  # says: torch.Tensor
reveal_type(flp.linear_logprob(h, h, h, entropy=True))  # says: Tuple[torch.Tensor, torch.Tensor]
reveal_type(flp.linear_logprob(h, h, h, entropy=entropy))  # says: Any
reveal_type(flp.linear_logprob(h, h, h, entropy="detached"))  # says: Tuple[torch.Tensor, torch.Tensor]
reveal_type(flp.linear_logprob(h, h, h, entropy=True, keep=(h, h)))  # says: Tuple[torch.Tensor, torch.Tensor]
reveal_type(flp.linear_logprob(h, h, h, keep=(h, h), kept_mass=True))  # says: Any
reveal_type(flp.linear_logprob(h, h, h, topk=20, rank=True))  # says: Any
reveal_type(flp.parallel.linear_logprob(h, h, h, topk=20))  # says: Any
reveal_type(flp.score(h, h, h, topk=20).top)  # says: Union[Tuple[torch.Tensor, torch.Tensor, torch.Tensor, fallback=flp._tensors._top.Top], None]
reveal_type(flp.linear_logprob(h, h, h, tail=2**-9, tail_report=h))  # says: torch.Tensor
reveal_type(flp.linear_logprob_partial(h, h, h, vocab_offset=0, vocab_total=8))  # says: torch.Tensor
reveal_type(flp.linear_logprob_partial(h, h, h, vocab_offset=0, vocab_total=8, tail=2**-9)[1])  # says: Union[torch.Tensor, None]
reveal_type(flp.parallel.linear_logprob(h, h, h, entropy=True, tail=0.0))  # says: Tuple[torch.Tensor, torch.Tensor]
reveal_type(flp.parallel.linear_logprob(h, h, h, entropy="detached"))  # says: Tuple[torch.Tensor, torch.Tensor]
reveal_type(flp.parallel.linear_logprob(h, h, h, entropy=True))  # says: Tuple[torch.Tensor, torch.Tensor]
reveal_type(flp.selective_log_softmax(h, h))  # says: torch.Tensor
reveal_type(flp.selective_log_softmax(h, h, entropy=True)[1])  # says: torch.Tensor
reveal_type(flp.selective_divergence(h, h, "jsd", parameters={"mix": 0.3}, mask=h).value)  # says: torch.Tensor
loss, metrics = flp.policy_loss("grpo", h, h, h, h, clip=(0.2, 0.28), total=32)
reveal_type(loss)  # says: torch.Tensor
reveal_type(flp.policy_loss("ppo", h, h, h, h, reference=flp.Reference(h, h, kind="jsd"))[0])  # says: torch.Tensor
reveal_type(flp.Reference(h, h).parameters)  # says: Union[typing.Mapping[builtins.str, builtins.float], None]
reveal_type(metrics["kl"])  # says: torch.Tensor
reveal_type(flp.losses.policy_loss("ppo", h, h)[0])  # says: torch.Tensor
reveal_type(flp.distill_loss(h, h, h, h, loss="jsd", parameters={"mix": 0.3})[0])  # says: torch.Tensor
reveal_type(flp.losses.divergence("jsd", h, h))  # says: torch.Tensor
reveal_type(flp.losses.preference_loss("dpo", (h, h), (h, h))[0])  # says: torch.Tensor
reveal_type(flp.losses.kl(h, h))  # says: torch.Tensor
scores = flp.score(h, h, h)
reveal_type(scores.entropy)  # says: Union[torch.Tensor, None]
reveal_type(scores.keep(sequences=flp.gate(flp.delight(scores.mean, h), fraction=0.1)).logprob)  # says: torch.Tensor
reveal_type(flp.combine_partials([h, h], h, vocab_total=8)[1])  # says: Union[torch.Tensor, None]
reveal_type(flp.plan_info(vocab=8, hidden=8, grads=("hidden",)).forward)  # says: builtins.dict[builtins.str, Any]
reveal_type(flp.explain(h, h, h).rung)  # says: builtins.str
reveal_type(flp.installed())  # says: builtins.dict[builtins.str, Union[builtins.str, None]]
reveal_type(flp.__version__)  # says: builtins.str
reveal_type(flp.BudgetError("x").detail)  # says: builtins.str
with flp.phase("inference"), flp.memory.Profiler() as profiler, profiler.step("logprob"):
    reveal_type(profiler.report)  # says: builtins.dict[builtins.str, Any]
with flp.logprob_head(torch.nn.Linear(8, 8)) as head:
    reveal_type(head)  # says: flp.heads._head.LogprobHead
flp.adapters.install("trl", untested=True)
flp.set_log(lambda level, message: print(level + 1, message.upper()))

flp.linear_logprob(h, h)  # error: call-overload
flp.linear_logprob(h, h, h, temperature="hot")  # error: call-overload
flp.linear_logprob(h, h, h, temprature=1.0)  # error: call-overload
flp.linear_logprob(h, h, h, entropy="value")  # error: call-overload
flp.score(h, h, h, entropy="value")  # error: arg-type
flp.policy_loss("grpo", h, h, h, h, clip=0.2)  # error: arg-type
flp.policy_loss("grpo", h, h, h, h, beta="much")  # error: arg-type
flp.policy_loss("grpo", h, h, h, h, reference=h)  # error: arg-type
flp.Reference(h, h, coefficient="much")  # error: arg-type
flp.distill_loss(h, h, h, h, loss=3)  # error: arg-type
flp.gate(h, fraction=h)  # error: arg-type
flp.plan_info(vocab=8)  # error: call-arg
flp.linear_logprob_partial(h, h, h, vocab_total=8)  # error: call-overload
flp.linear_logprob(h, h, h, tail="2^-9")  # error: call-overload
flp.linear_logprob(h, h, h, topk=2.5)  # error: call-overload
flp.policy_loss("grpo", h, h, h, h, tail_report=4)  # error: arg-type
flp.install(7)  # error: arg-type
flp.nothing  # error: attr-defined
flp.explain(h, h, h).speed  # error: attr-defined
with flp.phase("inference", workspace=1):  # error: arg-type
    pass
